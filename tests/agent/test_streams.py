"""Who waits for whom: on the device between streams, on the host for an event."""

import threading

import pytest
import torch

from laser_rl import gpu_streams as streams
from laser_rl.cuda import graphs
from laser_rl.gpu_streams import Handover, wait_for

CPU = torch.device("cpu")


class Event:
    """Over after it was asked `looks` times."""

    def __init__(self, looks):
        self.looks = looks

    def query(self):
        self.looks -= 1
        return self.looks < 0


class Device:
    """Takes down what streams are told, instead of doing it."""

    def __init__(self):
        self.said, self.current, self.made = [], "learner", 0

    def event(self):
        self.made += 1
        name, device = ("written", "read")[self.made - 1], self

        class Named:
            def record(self, stream):
                device.said.append(f"{stream.name} records {name}")

            def query(self):
                device.said.append(f"host asks for {name}")
                return True

            def __str__(self):
                return name

        return Named()

    def stream(self, _device):
        device = self

        class Stream:
            name = device.current

            def wait_event(self, event):
                device.said.append(f"{self.name} waits for {event}")

        return Stream()


@pytest.fixture
def device(monkeypatch):
    device = Device()
    monkeypatch.setattr(streams.cuda, "Event", device.event)
    monkeypatch.setattr(streams.cuda, "current_stream", device.stream)
    return device


def test_a_wait_ends_with_the_event_or_says_for_whom_it_was():
    wait_for(Event(3), "the learner", "the card", timeout_s=60.0)
    with pytest.raises(TimeoutError, match="the learner has waited 0 s for the card and gives up"):
        wait_for(Event(10**9), "the learner", "the card", timeout_s=0.01)


def test_each_side_waits_for_the_last_of_the_other_before_and_tells_after(device):
    handover = Handover(torch.device("cuda"))
    with handover.write():
        device.said.append("publish")
    device.current = "actor"
    with handover.read():
        device.said.append("collect")
    assert device.said == [
        "learner waits for read",
        "publish",
        "learner records written",
        "actor waits for written",
        "collect",
        "actor records read",
    ]


def test_the_host_waits_for_what_was_written_only(device):
    handover = Handover(torch.device("cuda"))
    handover.await_written("the thread that gathers", "an upload")
    assert device.said == ["host asks for written"]


def test_on_a_cpu_nobody_waits_and_nothing_is_recorded(device):
    handover = Handover(CPU)
    with handover.write(), handover.read():
        handover.await_written("nobody", "nobody")
    assert device.said == []
    assert streams.own_stream(CPU, "acting") is None


def test_who_cannot_capture_in_time_says_so():
    held, release = threading.Event(), threading.Event()

    def hold():
        with graphs.turn("the learner"):
            held.set()
            release.wait(30.0)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(30.0)
        with pytest.raises(TimeoutError, match="the actor has waited 0 s for another thread to capture"):  # noqa: SIM117
            with graphs.turn("the actor", timeout_s=0.01):
                pass
    finally:
        release.set()
        thread.join(30.0)
    with graphs.turn("the actor", timeout_s=30.0):  # it is free again
        pass


def test_a_capture_in_inference_mode_is_refused():
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"use torch\.no_grad"):
        graphs.capture(lambda: None, torch.device("cuda"), who="the actor")
