"""What `statecharts/request.scxml` may ask about a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from luce.charts.guards import guard
from luce.scheduling.before_pictures import rows_to_go
from luce.scheduling.staged_passes import staged_rows

if TYPE_CHECKING:
    from luce.actors.request import Request

__all__ = ["RequestGuards"]


class RequestGuards:
    """What `request.scxml` may ask. Reads the request's data; changes nothing."""

    def __init__(self, request: Request) -> None:
        self._request = request

    @guard
    def follows(self) -> bool:
        """The first choice for its prompt computes it for this one, too."""
        return self._request.follows

    @guard
    def images_missing(self) -> bool:
        """Some picture that the prompt's rows to come need is not encoded yet."""
        return bool(self._request.missing_images)

    @guard
    def rows_ready(self) -> bool:
        """The next prompt rows have their inputs, all of them or as many as are worth a step; in a staged prompt, all
        rows of a chunk."""
        request = self._request
        if request.staged:
            prompt = request.staged_prompt
            return staged_rows(prompt, request.computed_rows, prompt.end) > 0
        at = request.computed_rows
        return rows_to_go(at, request.ready_rows, request.prompt_rows, request.rows_before_picture) > at

    @guard
    def whole_blocks(self) -> bool:
        """The engine takes the rows of this prompt's pictures only together, in staged passes."""
        return self._request.staged

    @guard
    def prompt_complete(self) -> bool:
        return self._request.computed_rows >= self._request.prompt_rows

    @guard
    def layers_left(self) -> bool:
        """The staged pass has slices left for this request's chunk."""
        return self._request.layers_left

    @guard
    def prefix_complete(self) -> bool:
        return self._request.computed_rows >= self._request.prompt_rows - 1

    @guard
    def goes_on_free(self) -> bool:
        request = self._request
        return request.finish is None and request.mask is None and not request.masking

    @guard
    def mask_pending(self) -> bool:
        """A worker computes what the next token may be, or is about to be asked."""
        return self._request.masking

    @guard
    def masked(self) -> bool:
        """What the next token may be is known, and not all are."""
        return self._request.mask is not None

    @guard
    def stop_reached(self) -> bool:
        return self._request.finish is not None

    @guard
    def recomputable(self) -> bool:
        """The engine can build this request's state again from its prompt, image rows and tokens."""
        return self._request.recomputable
