"""A graph on the CPU: operations are written down once and done again on the same memory, as a CUDA graph does.

What a graph cannot do, it cannot either: nothing that the host computed is computed again, a tensor that was replaced is still read
where it lay, and whoever looks at a value while it is recorded fails. Recording changes nothing.
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ATEN = torch.ops.aten
LOOKS = {
    ATEN._local_scalar_dense,
    ATEN.is_nonzero,
    ATEN.equal,
    ATEN.nonzero,
    ATEN.masked_select,
    ATEN._unique2,
    ATEN.lift_fresh,  # torch.tensor(...): a copy from the host
}


class Looked(RuntimeError):
    """The host wanted to know, or to tell, a value."""


class NoLooks(TorchDispatchMode):
    """Fails where a GPU would have to be waited for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        packet = func.overloadpacket
        masks = packet is ATEN.index and any(x is not None and x.dtype in {torch.bool, torch.uint8} for x in args[1])
        if packet in LOOKS or masks:
            raise Looked(f"{func} waits for the device")
        return self.done(func, args, kwargs or {})

    def done(self, func, args, kwargs):
        return func(*args, **kwargs)


class _Writing(NoLooks):
    def __init__(self):
        super().__init__()
        self.lines, self.made, self.before = [], {}, {}

    def done(self, func, args, kwargs):
        given = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
        if func._schema.is_mutable:
            for tensor in given:
                memory = tensor.untyped_storage()
                if memory.data_ptr() not in self.made:
                    self.before.setdefault(memory.data_ptr(), (memory, memory.clone()))
        out = func(*args, **kwargs)
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        results = [x for x in tree_flatten(out)[0] if isinstance(x, torch.Tensor)]
        own = [x.untyped_storage().data_ptr() not in known for x in results]
        for tensor, new in zip(results, own, strict=True):
            if new:
                self.made[tensor.untyped_storage().data_ptr()] = (
                    tensor.untyped_storage()
                )  # kept: no address is given twice
        here = tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        self.lines.append((func, here, [x.detach() for x in results], own))
        return out

    def undo(self):
        for memory, before in self.before.values():
            memory.copy_(before)

    @torch.no_grad()
    def again(self):
        for func, (args, kwargs), results, own in self.lines:
            fresh = [x for x in tree_flatten(func(*args, **kwargs))[0] if isinstance(x, torch.Tensor)]
            for place, new, is_own in zip(results, fresh, own, strict=True):
                if is_own:
                    place.copy_(new)


class WrittenDown:
    """A recorder; counts what it is asked."""

    def __init__(self):
        self.rehearsals = self.records = self.replays = 0

    def rehearse(self, work):
        self.rehearsals += 1
        with NoLooks():
            return work()

    def record(self, work):
        self.records += 1
        written = _Writing()
        try:
            with written:
                result = work()
        finally:
            written.undo()

        def replay():
            self.replays += 1
            written.again()
            return result

        return replay
