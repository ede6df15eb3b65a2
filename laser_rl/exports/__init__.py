"""What leaves a run for other programs: the policy as ONNX, whole episodes as a Minari dataset, a folder for the Hugging Face Hub.

Everything here only reads the run, and may be used while it goes on. Each part needs an extra of its own.
"""
