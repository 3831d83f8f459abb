"""Stable-Baselines3's callback for checkpoints, with files that are there whole or not at all."""

from __future__ import annotations

import io
import pathlib
import pickle
from typing import Any

from stable_baselines3.common import callbacks

from fbuf_adapters.sb3 import _pickles
from fbuf_adapters.sb3._replay_buffer import ReplayBuffer


class CheckpointCallback(callbacks.CheckpointCallback):
    """Saves the model, and on request its replay buffer, every `save_freq` calls.

    Arguments, names of files and what is in them are those of Stable-Baselines3's callback. Each
    file is written under another name first, and brought to the disk. So a process that is killed
    leaves no half of one. The model comes last: where its file is, the other files of that
    checkpoint are whole.

    `save_freq` counts calls of `env.step`, `save_path` is the directory, and `name_prefix` begins
    the names. `save_replay_buffer` and `save_vecnormalize` save the buffer and the statistics of a
    `VecNormalize`, too. With `verbose=2` the path of each file is printed.

    Examples:
        >>> import os, tempfile
        >>> from stable_baselines3 import DQN
        >>> from fbuf_adapters.sb3 import CheckpointCallback, ReplayBuffer
        >>> path = tempfile.mkdtemp()
        >>> options = {"learning_starts": 90, "replay_buffer_class": ReplayBuffer}
        >>> model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100, **options)
        >>> model = model.learn(40, CheckpointCallback(20, path, save_replay_buffer=True))
        >>> sorted(os.listdir(path))[:2]
        ['rl_model_20_steps.zip', 'rl_model_40_steps.zip']
        >>> model.load_replay_buffer(f"{path}/rl_model_replay_buffer_40_steps.pkl")
        >>> model.replay_buffer.size()  # the newest step is added after the callback
        39
    """

    def _on_step(self) -> bool:
        if self.n_calls % self.save_freq:
            return True
        buffer: Any = getattr(self.model, "replay_buffer", None)
        if self.save_replay_buffer and buffer is not None:
            path = self._checkpoint_path("replay_buffer_", extension="pkl")
            if isinstance(buffer, ReplayBuffer):
                buffer.save(path)
                self._say(path)
            else:
                self._write(path, pickle.dumps(buffer, pickle.HIGHEST_PROTOCOL))
        normalized = self.model.get_vec_normalize_env()
        if self.save_vecnormalize and normalized is not None:
            path = self._checkpoint_path("vecnormalize_", extension="pkl")
            self._write(path, pickle.dumps(normalized))
        model = io.BytesIO()
        self.model.save(model)
        self._write(self._checkpoint_path(extension="zip"), model.getvalue())
        return True

    def _write(self, path: str, content: bytes) -> None:
        where = "fbuf_adapters.sb3.CheckpointCallback"
        put = lambda file: file.write(content)
        _pickles.write(where, pathlib.Path(path), put, len(content))
        self._say(path)

    def _say(self, path: str) -> None:
        if self.verbose >= 2:
            print(f"Saved {path}")
