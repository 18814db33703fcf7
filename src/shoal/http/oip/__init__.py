"""The Open Inference Protocol, version 2: endpoints as models, with tensors in and out.

`request` reads the tensors of a request, `inputs` makes items of their rows, `outputs` makes
tensors of the results, and `protocol` makes the calls. `forms` reads the annotations of a model,
which are its metadata.
"""
