"""From what a request asks of its answer's form to what holds the answer to it: one for each model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luce.constraints.answer import AnswerConstraint, AnswerRules, ThinkingRules
from luce.constraints.call_forms import CallRules, CallSyntax, call_syntax
from luce.constraints.grammar import Grammar, GrammarCompiler
from luce.constraints.text_forms import text_grammar
from luce.constraints.wish import CallForm, ConstraintWish, TextKind
from luce.errors import RequestError
from luce.text.reasoning import CLOSE
from luce.text.tokenizer import Tokenizer
from luce.text.tool_calls import CLOSE as CALL_CLOSE
from luce.text.tool_calls import OPEN as CALL_OPEN

__all__ = ["Constrainer"]

FORCED_CLOSE = ("\n", "\n\n")
"""Text before and behind the token that ends thinking, as the family's template writes it."""
_LEAD = r"LEAD: /\n{1,2}/"
"""What may come between the end of thinking and the answer."""


class Constrainer:
    """Args:
    tokenizer: the model's.
    eos_token_ids: what ends its answers.
    template: source of its chat template, which shows how it writes calls.
    """

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int], template: str) -> None:
        self.compiler = GrammarCompiler(tokenizer, eos_token_ids)
        self.syntax: CallSyntax | None = call_syntax(template)
        self._tokenizer = tokenizer
        self._eos = frozenset(eos_token_ids)
        self._close = tokenizer.special_ids.get(CLOSE)
        self._marks = tokenizer.special_ids.get(CALL_OPEN), tokenizer.special_ids.get(CALL_CLOSE)

    def constraint(self, wish: ConstraintWish, *, thinking: bool) -> AnswerConstraint | None:
        """Compile what is wished; for worker threads. None: the answer is free.

        Args:
            thinking: the prompt opened a think block.

        Raises:
            RequestError: it cannot be had; names the field.
        """
        calls = wish.calls
        if calls is not None and wish.text is None and not calls.binding:
            calls = None
        budget = wish.thinking_budget if thinking else None
        if wish.text is None and calls is None and budget is None:
            return None
        free = wish.text is None and (calls is None or not calls.required)
        return AnswerConstraint(
            AnswerRules(
                num_ids=self.compiler.num_ids,
                field=wish.field if wish.text is not None else "tools",
                eos=self._eos,
                thinking=self._thinking(budget, wish) if thinking else None,
                whole=None if free else self._whole(wish, calls, thinking=thinking),
                call=self._call(calls) if free and calls is not None else None,
                trigger=self._trigger(calls)[0] if calls is not None else None,
            )
        )

    def _thinking(self, budget: int | None, wish: ConstraintWish) -> ThinkingRules:
        if self._close is None:
            raise RequestError(
                f"{CLOSE} is no single token of this model, so its thinking can be told from its answer only in text: "
                "turn thinking off to have an answer of this form",
                field=wish.field,
            )
        before, behind = map(self._tokenizer.encode_text, FORCED_CLOSE)
        return ThinkingRules(self._close, budget, tuple(before), tuple(behind), self._tokenizer)

    def _whole(self, wish: ConstraintWish, calls: CallForm | None, *, thinking: bool) -> Grammar:
        """The grammar of everything behind the think block."""
        bodies, rules, others = [], [], list[dict[str, Any]]()
        text = wish.text if calls is None or not calls.required else None
        if text is not None:
            others.append({"name": "text", **text_grammar(text)})
            bodies.append("@text")
        if calls is not None:
            bodies.append("calls")
            opened, closed = self._trigger(calls)
            bodied = self._call_rules(calls, strict_only=not calls.required)
            names = " | ".join(bodied.names)
            rules.append("calls: call" if calls.single else 'calls: call ("\\n"? call)*')
            rules.append(f"call: <[{opened}]> ({names}) <[{closed}]>")
            rules.append(bodied.text)
        if thinking:
            rules.append(_LEAD)
        start = f"start: {'LEAD? ' if thinking else ''}({' | '.join(bodies)})"
        main = {"name": "answer", "lark_grammar": "\n".join(["%llguidance {}", start, *rules])}
        composed = text is None or text.kind is not TextKind.LARK
        field = wish.field if text is not None else "tools"
        return self.compiler.compile([main, *others], field, composed=composed)

    def _call(self, calls: CallForm) -> Grammar:
        """The grammar of one call behind its first token."""
        bodied = self._call_rules(calls, strict_only=True)
        start = f"start: ({' | '.join(bodied.names)}) <[{self._trigger(calls)[1]}]>"
        lark = "\n".join(["%llguidance {}", start, bodied.text])
        return self.compiler.compile([{"name": "call", "lark_grammar": lark}], "tools")

    def _call_rules(self, calls: CallForm, *, strict_only: bool) -> CallRules:
        assert self.syntax is not None
        return CallRules(calls.tools, self.syntax, strict_only=strict_only)

    def _trigger(self, calls: CallForm) -> tuple[int, int]:
        opened, closed = self._marks
        if self.syntax is None or opened is None or closed is None:
            raise RequestError(
                "this model's chat template and tokenizer know no tool calls that an answer could be held to",
                field=calls.field if calls.required else "tools",
            )
        return opened, closed
