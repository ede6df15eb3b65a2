# docker build -t laser-rl .                 for CPUs
# docker build -t laser-rl --build-arg INDEX=https://download.pytorch.org/whl/cu130 .
# docker run --rm -v "$PWD/runs:/home/laser/runs" laser-rl train --env CartPole-v1
FROM python:3.12-slim
ARG INDEX=https://download.pytorch.org/whl/cpu
RUN useradd --create-home --uid 1000 laser
WORKDIR /home/laser
COPY constraints.txt .
# torch first and from its own index: anything else that asks for torch must find it there.
RUN pip install --no-cache-dir --constraint constraints.txt --index-url "$INDEX" torch
COPY --chown=laser pyproject.toml README.md LICENSE source/
COPY --chown=laser laser_rl source/laser_rl
RUN pip install --no-cache-dir --constraint constraints.txt "./source[atari,dashboard,video]"
USER 1000
ENTRYPOINT ["laser"]
CMD ["--help"]
