"""The errors and the warning that the library raises deliberately; every message says what to do."""


class ProtectionError(RuntimeError):
    """The protection cannot continue: the model, the optimizer or a process group is not what it expects."""


class NonFiniteError(ValueError):
    """Rows, gradients or layer signals contain NaN or infinity; `examples` holds the indices of the bad rows."""

    def __init__(self, message: str, examples: list[int]) -> None:
        super().__init__(message)
        self.examples = examples


class StorageError(ValueError):
    """A memory file is corrupt, has another format, or does not fit the model it is loaded into."""


class ProtectionWarning(UserWarning):
    """Training is about to run with less protection than the user asked for, or more slowly than expected."""
