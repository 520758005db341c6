"""POST /v1/completions: submit every prompt, then write the answers as they come or once all are whole."""

from __future__ import annotations

from quart import Request, Response

from luce.http.answering.reader import AnswerReader
from luce.http.answering.several import AnswersReader
from luce.http.answering.start import Answering
from luce.http.openai.choice_events import ChoiceEvents, whole_answers
from luce.http.openai.completion_response import CompletionWriter
from luce.http.openai.prepare_completion import prepare_completion
from luce.http.sse import event_response

__all__ = ["Completions"]


class Completions:
    """The endpoint. One for the server; nothing of a request is kept here."""

    def __init__(self, answering: Answering) -> None:
        self._answering = answering

    async def __call__(self, request: Request) -> Response:
        wanted = await self._answering.prepared(request, prepare_completion)
        handles = self._answering.submit(request, wanted.jobs)
        forms = [job.form for job in wanted.jobs for _ in job.submissions]
        reader = AnswersReader([AnswerReader(*each) for each in zip(handles, forms, strict=True)])
        writer = CompletionWriter(wanted, reader, self._answering.model)
        if wanted.stream:
            events = ChoiceEvents(reader, writer)
            response = event_response(events, self._answering.options.keep_alive)
        else:
            response = Response(writer.answer(await whole_answers(reader)), content_type="application/json")
        response.headers["x-luce-seed"] = str(wanted.jobs[0].submission.params.seed)
        return response
