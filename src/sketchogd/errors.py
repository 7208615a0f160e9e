"""The errors and the warning this library raises on purpose; each message says what to do."""


class ProtectionError(RuntimeError):
    """A protection cannot go on: the model, the optimizer or a file is not what it expects."""


class NonFiniteError(ValueError):
    """Rows, gradients or layer signals contain NaN or infinity. `.examples` are the indices of the bad rows."""

    def __init__(self, message: str, examples: list[int]) -> None:
        super().__init__(message)
        self.examples = examples


class StorageError(ValueError):
    """A memory file is corrupt, of another format, or does not fit the model it is loaded into."""


class ProtectionWarning(UserWarning):
    """Something is about to train without the protection the user asked for, or slower than expected."""
