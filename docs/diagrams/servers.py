"""What a server does: the path of a request, placements, releases, and the end of a server."""

from docs.diagrams.svg import WIDTH, box, labelled, line, svg, text


def path_of_a_request() -> str:
    """From a client through front ends to replicas, here and elsewhere."""
    middle = WIDTH / 2
    parts = labelled(120, 10, 140, ["clients"], "plain")
    parts.append(line((middle, 36), (middle, 58), kind="arrow"))
    parts += [box(10, 60, 360, 62, "plain"), text(20, 76, "shoal serve --workers 3", "note")]
    for nth in range(3):
        parts += labelled(22 + 116 * nth, 86, 104, ["HTTP process"])
        parts.append(line((74 + 116 * nth, 112), (middle, 142), kind="arrow"))
    parts.append(text(middle + 66, 138, "items, not HTTP", "note"))
    parts += labelled(
        50, 144, 280, ["the server's process", "one queue for each backend", "batches"]
    )

    places = [
        (["task", "this process"], 10),
        (["process", "this machine"], 104),
        (["remote", "other hosts"], 198),
        (["ray", "a cluster"], 292),
    ]
    for words, x in places:
        parts.append(line((middle, 200), (x + 39, 228), kind="arrow"))
        parts += labelled(x, 230, 78, words)
    parts.append(
        text(10, 288, "An idle replica takes the next batch. Results return on the same", "note")
    )
    parts.append(text(10, 302, "path, each to its own client.", "note"))
    return svg(312, "The path of a request from a client to a replica", parts)


def placements() -> str:
    """Three questions that choose a placement."""
    steps = [
        (["Must it stay in one thread?", "SQLite, some libraries"], "thread", "no copy"),
        (["Is it async?", "or releases the GIL, as numpy"], "task", "the default"),
        (["Is one machine enough?", "pure Python, may crash"], "process", "a GPU each"),
        (["Do you run a Ray cluster?", "several machines"], "ray", "an actor each"),
    ]
    parts, y = [], 12.0
    for question, answer, why in steps:
        height = 11 + 15 * len(question)
        parts += labelled(10, y, 190, question, "plain")
        parts.append(line((200, y + height / 2), (236, y + height / 2), kind="arrow"))
        parts.append(text(206, y + height / 2 - 5, "yes", "note"))
        parts += labelled(238, y, 132, [answer])
        parts.append(text(238, y + 38, why, "note"))
        parts.append(line((105, y + height), (105, y + 62), kind="arrow"))
        parts.append(text(112, y + 56, "no", "note"))
        y += 64
    parts += labelled(10, y, 190, ["remote", "model servers on other hosts"])
    return svg(y + 54, "Questions that lead to a placement", parts)


def releases() -> str:
    """A canary gets a share of the requests; a shadow gets copies."""
    parts = []
    y = 20.0
    for heading, share, kind, note in (
        ("Canary: a share of the requests", "10%", "arrow", "results go to callers"),
        ("Shadow: copies of the requests", "copies", "dashed", "results are compared"),
    ):
        parts.append(text(10, y, heading, "head"))
        parts += labelled(10, y + 30, 90, ["requests"], "plain")
        parts += labelled(210, y + 10, 160, ["old version", "results go to callers"])
        parts += labelled(210, y + 62, 160, ["new version", note], "plain")
        parts.append(line((100, y + 38), (208, y + 30), kind="arrow"))
        parts.append(line((100, y + 46), (208, y + 82), kind=kind))
        parts.append(text(125, y + 28, "90%" if kind == "arrow" else "100%", "note"))
        parts.append(text(125, y + 78, share, "note"))
        y += 130
    return svg(y - 12, "A canary release and shadow traffic", parts)


def drain() -> str:
    """What happens between SIGTERM and the end of the process."""
    left, end = 12, WIDTH - 12
    signal, done, limit = 80, 250, 320
    rows = [
        ("/-/readyz", [(left, signal, "run", "200"), (signal, done, "bad", "503")]),
        ("new connections", [(left, signal, "run", "accepted"), (signal, done, "bad", "refused")]),
        ("queued requests", [(left, 200, "run", "run, or 503 if dropped")]),
        ("running requests", [(left, done, "run", "finish")]),
        ("replicas", [(left, done + 20, "idle", "stop last")]),
    ]
    parts = [text(signal, 18, "SIGTERM", "mid head")]
    parts.append(text(done + 20, 18, "exit", "mid head"))
    parts.append(text(limit + 20, 18, "limit", "mid note"))
    y = 40.0
    for name, spans in rows:
        parts.append(text(left, y, name, "note"))
        for first, last, kind, words in spans:
            parts.append(box(first, y + 5, last - first - 2, 18, kind))
            parts.append(text(first + 5, y + 18, words, "note"))
        y += 42
    ends = (signal, done + 20, limit + 20)
    parts += [line((x, 24), (x, y - 14), kind="dashed") for x in ends]
    parts.append(
        text(left, y, "At the limit, --graceful-timeout, what still runs is cancelled.", "note")
    )
    parts.append(line((left, y - 14), (end, y - 14)))
    return svg(y + 12, "The end of a server, from SIGTERM to exit", parts)
