"""Runtimes: from a configuration to parts (`build`), how they run (`serial`, `local`), and what stands beside them (`training`)."""
