"""How many tokens a decoding sequence draws in one launch, where the user does not say.

The host plans and reads every launch, while the device computes the one before. Where the device is
faster than the host, several tokens a launch keep it busy; where it is not, they only make text
arrive in lumps and newcomers wait. Pure arithmetic over sizes.
"""

from runtime.config import EngineConfig

# What the host does for one launch. Measured on 2 x86-64 cores that also computed (SmolLM2, one
# sequence): 9.85 ms of processor time a token with one token a launch, 8.54 with eight.
HOST_S = 1.5e-3
BYTES_PER_S = 672e9  # that a device reads its weights at: the S60's memory
MOST = 8  # beyond it a launch's own cost is below an eighth


def num_decode_steps(config: EngineConfig, device_bytes: int, *, is_host: bool) -> int:
    """For weights of `device_bytes` on each device. 1 where the host computes: launches are not
    what takes its time, and each further program makes its start longer.
    """
    if config.decode_steps is not None:
        return config.decode_steps
    if is_host:
        return 1
    step_s = device_bytes / BYTES_PER_S
    return min(MOST, max(1, -int(-HOST_S // step_s)))
