"""Chat sessions whose history stays on one replica: ``shoal serve examples.sessions.app:app``.

Send the session as the header ``X-Serve-Shard-Key``::

    curl localhost:8000/chat -H 'X-Serve-Shard-Key: ann' \\
        -H 'content-type: application/json' -d '{"session": "ann", "turns": ["hi"]}'
"""

from dataclasses import dataclass

import shoal


@dataclass
class Chat:
    session: str
    turns: list[str]


@dataclass
class Reply:
    text: str
    read_turns: int
    """How many turns the model had to read; the others were in the cache of its replica."""
    replica: str


class Model:
    """Stands in for a language model with a prefix cache."""

    def __init__(self) -> None:
        self.known: dict[str, list[str]] = {}

    async def __call__(self, chats: list[Chat]) -> list[Reply]:
        return [self.reply(chat) for chat in chats]

    def reply(self, chat: Chat) -> Reply:
        known = self.known.get(chat.session, [])
        is_prefix = chat.turns[: len(known)] == known
        read = chat.turns[len(known) :] if is_prefix else chat.turns
        text = f"reply {len(chat.turns)}"
        self.known[chat.session] = [*chat.turns, text]
        return Reply(text, len(read), shoal.current_replica_tag())


app = shoal.App()
app.backend("model", Model, num_replicas=3, max_batch_size=8, sticky_load_factor=2)
app.route("chat", backend="model", path="/chat")
