"""The innermost frame of the user's own code, in every dialect of traceback."""

import json

import pytest

from humigence_supervise.observe.lines import read_line
from humigence_supervise.observe.traceback import crash_frame, is_in_traceback, user_frame

PLAIN = """\
Traceback (most recent call last):
  File "/home/user/train.py", line 318, in main
    train(model)
  File "/home/user/model.py", line 84, in forward
    return self.layer(x)
  File "/env/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1511, in _call_impl
    return forward_call(*args, **kwargs)
"""
RICH = """\
╭─────────────────── Traceback (most recent call last) ────────────────────╮
│ /home/user/dolly/training/trainer.py:339 in <module>                     │
│                                                                          │
│   336 │   │   format="%(asctime)s %(levelname)s [%(name)s] %(message)s", │
│ ❱ 339 │   │   main()                                                     │
│                                                                          │
│ /home/user/dolly/training/models/unet_2d_condition_with_a_long_name.py   │
│ :407 in forward                                                          │
│                                                                          │
│ ❱ 407 │   │   │   │   sample = upsample_block(                           │
│                                                                          │
│ /usr/local/lib/python3.9/dist-packages/torch/nn/modules/module.py:1501 in │
│ _call_impl                                                               │
│                                                                          │
╰──────────────────────────────────────────────────────────────────────────╯
"""
IPYTHON_OLD = """\
---------------------------------------------------------------------------
RuntimeError                              Traceback (most recent call last)
<ipython-input-7-badf28ab2bd7> in <module>()
     10
     11 for i in range(10):
---> 12     mnist_estimator.fit(inputs)

/home/user/work/estimator.py in fit(self, inputs, wait)
    313         def fit_super():
--> 314             super().fit(inputs)

/usr/local/lib/python3.6/site-packages/torch/tensor.py in backward(self)
    149 \"\"\"
--> 150         torch.autograd.backward(self)

"""
IPYTHON_8 = """\
---------------------------------------------------------------------------
OutOfMemoryError                          Traceback (most recent call last)
Cell In[3], line 2
      1 model = build()
----> 2 train(model)

File ~/work/model.py:12, in train(model)
     11 x = load()
---> 12 model(x)

File /opt/conda/lib/python3.10/site-packages/torch/nn/modules/module.py:1501, in Module._call(self)
   1500 if not self._hooks:
-> 1501     return forward(*args)

"""
SPAWN = """\
Process SpawnProcess-1:
Traceback (most recent call last):
  File "/usr/lib/python3.9/multiprocessing/process.py", line 315, in _bootstrap
    self.run()
  File "C:\\Users\\me\\proj\\worker.py", line 7, in run_worker
    step()
  File "C:\\Users\\me\\AppData\\Local\\Programs\\Python\\Python310\\lib\\threading.py", line 5, in f
"""
REPLICA = """\
Traceback (most recent call last):
  File "main.py", line 20, in <module>
    out = model(x)
  File "/env/lib/python3.7/site-packages/torch/_utils.py", line 394, in reraise
    raise self.exc_type(msg)
RuntimeError: Caught RuntimeError in replica 1 on device 1.
Original Traceback (most recent call last):
  File "/env/lib/python3.7/site-packages/torch/nn/parallel/parallel_apply.py", line 60, in _worker
    output = module(*input, **kwargs)
  File "/home/user/net.py", line 33, in forward
    return self.conv(x)
"""
GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/app/run.py", line 10, in main
  |     async with TaskGroup() as tg:
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/app/data.py", line 5, in fetch
    |     raise ValueError("x")
"""
CHAIN = """\
Traceback (most recent call last):
  File "/app/data.py", line 5, in fetch
    raise KeyError("x")
KeyError: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/datasets/builder.py", line 9, in build
    raise DatasetGenerationError from error
"""
UNCHAINED = CHAIN.replace("The above exception was the direct cause of the following", "Retrying:")
HYDRA = """\
Error executing job with overrides: ['model=big']
Traceback (most recent call last):
  File "/app/train.py", line 41, in main
    fit()
"""
RAY = """\
ray.exceptions.RayTaskError(ValueError): ray::RayTrainWorker._execute() (pid=1, ip=10.0.0.1)
  File "/env/lib/python3.9/site-packages/ray/train/_internal/worker_group.py", line 33, in __execute
    raise skipped from exception_cause(skipped)
  File "/app/tune.py", line 60, in train_func
    fit()
"""
SYNTAX = """\
  File "/app/train.py", line 7
    def f(:
          ^
"""
COMPILED = """\
Traceback (most recent call last):
  File "/app/net.py", line 3, in forward
    return x + y
  File "/tmp/torchinductor_user/ab/cab.py", line 99, in call
    triton_poi.run(x)
  File "<frozen runpy>", line 88, in _run_code
"""
ENTRY = """\
Traceback (most recent call last):
  File "/home/user/env/bin/accelerate", line 10, in <module>
    sys.exit(main())
  File "C:\\env\\Scripts\\imagine.exe\\__main__.py", line 7, in <module>
"""
JSON_LINES = "\n".join(
    json.dumps({"log": f"{line}\n", "stream": "stderr"}) for line in PLAIN.splitlines()
)


def above(text):
    """Return the texts of the lines of a traceback, prefixes peeled."""
    return [line.text for raw in text.splitlines() for line in read_line(raw)]


@pytest.mark.parametrize(
    ("text", "frame"),
    [
        (PLAIN, "model.py:84 in forward"),
        ("".join(f"[rank3]: {line}\n" for line in PLAIN.splitlines()), "model.py:84 in forward"),
        ("".join(f"3: {line}\n" for line in PLAIN.splitlines()), "model.py:84 in forward"),
        ("".join(f"worker-1: {line}\n" for line in PLAIN.splitlines()), "model.py:84 in forward"),
        ("".join(f"2024-01-02T03:04:05.6Z stderr F {line}\n" for line in PLAIN.splitlines()),
         "model.py:84 in forward"),
        (JSON_LINES, "model.py:84 in forward"),
        (RICH, "unet_2d_condition_with_a_long_name.py:407 in forward"),
        ("".join(f"\x1b[31m{line}\x1b[0m\n" for line in RICH.splitlines()),
         "unet_2d_condition_with_a_long_name.py:407 in forward"),
        (
            "│ /home/setup/a_long_name_of_train.py:81 │\n│ in wait_for_everyone │\n│ ❱ 81 │ x │",
            "a_long_name_of_train.py:81 in wait_for_everyone",
        ),
        (IPYTHON_OLD, "estimator.py:314 in fit"),
        (IPYTHON_8, "model.py:12 in train"),
        (IPYTHON_8.split("File ~", maxsplit=1)[0], "In[3]:2"),
        (SPAWN, "worker.py:7 in run_worker"),
        (REPLICA, "net.py:33 in forward"),
        (GROUP, "data.py:5 in fetch"),
        (CHAIN, "data.py:5 in fetch"),
        (UNCHAINED, ""),
        (HYDRA, "train.py:41 in main"),
        (RAY, "tune.py:60 in train_func"),
        (RAY.replace("/app/tune.py", "python/ray/_raylet.pyx"), ""),
        (SYNTAX, "train.py:7"),
        (COMPILED, "net.py:3 in forward"),
        (ENTRY, ""),
        ("Input In [3], in <cell line: 2>()\n----> 2 train()", "In [3]:2"),
        ("step 1\nstep 2", ""),
    ],
)  # fmt: skip
def test_the_innermost_own_frame(text, frame):
    """Library, launcher and generated code are passed over; a chain is followed to its cause."""
    assert user_frame(above(text)) == frame


@pytest.mark.parametrize("text", [PLAIN, RICH, IPYTHON_OLD, IPYTHON_8, GROUP, SYNTAX, JSON_LINES])
def test_a_traceback_is_known_as_one(text):
    """Any dialect counts as a traceback; ordinary output does not."""
    assert is_in_traceback(above(text))
    assert not is_in_traceback(["step 1 loss 0.5", "Files: 3", "--> saved model.pt"])


def test_the_last_traceback_counts():
    """An earlier, survived traceback gives no frame to a later exception."""
    later = 'Traceback (most recent call last):\n  File "/app/b.py", line 2, in g\n'
    assert user_frame(above(PLAIN + "ValueError: x\nstep 2\n" + later)) == "b.py:2 in g"


def test_a_crash_stack_is_read_downwards():
    """Faulthandler prints the innermost frame first, of the current thread last."""
    below = [
        "Thread 0x00007f (most recent call first):",
        '  File "/app/loader.py", line 9 in fetch',
        "Current thread 0x00007f (most recent call first):",
        '  File "/env/lib/python3.11/site-packages/torch/_ops.py", line 502 in __call__',
        '  File "/app/train.py", line 31 in step',
    ]
    assert crash_frame(below) == "train.py:31 in step"
