"""What is known of OpenAI's API, and of other servers' additions to it, and not served here."""

from __future__ import annotations

from luce.errors import RequestError
from luce.http.answering.unserved import Unserved, not_supported
from luce.http.openai.generation_fields import GenerationFields

__all__ = ["CHAT", "COMMON", "COMPLETION", "check_best_of", "check_stream_options"]

_OFF = (0, 0.0)
_ONE = (1, 1.0)
_BACKEND = "there is one way of holding answers to forms"
_CACHE = "the prefix cache finds what it can use by itself; cache_salt keeps callers apart"
_SAMPLER = "the samplers are temperature, top_k, top_p, min_p and the penalties"
_MAX_TOKENS = "it is called max_tokens here"

COMMON: Unserved = {
    # vLLM
    "priority": ((0,), "requests are served in the order in which they arrive; leave it out or send 0"),
    "use_beam_search": ((False,), "sampling only"),
    "length_penalty": (_ONE, "it is for beam search"),
    "early_stopping": ((False,), "it is for beam search"),
    "truncate_prompt_tokens": ((), "nothing is cut: shorten the prompt; /tokenize counts its tokens"),
    "bad_words": (([],), "ids of single tokens can have a logit_bias of -100"),
    "allowed_token_ids": ((), "logit_bias can favour up to all ids"),
    "prompt_logprobs": ((), "log-probabilities are those of the answer"),
    "return_token_ids": ((False,), "/tokenize gives the ids of a prompt"),
    "return_tokens_as_token_ids": ((False,), "tokens come with their bytes"),
    "logprob_token_ids": ((), "top_logprobs gives the most likely ones"),
    "logits_processors": ((), ""),
    "guided_decoding_backend": ((), _BACKEND),
    "guided_whitespace_pattern": ((), "blanks between the parts of JSON are bounded"),
    "kv_transfer_params": ((), "prefill and decode run here"),
    "vllm_xargs": ((), ""),
    "repetition_detection": ((), "repetition_penalty makes repeats less likely"),
    # SGLang, LMDeploy, TGI
    "stop_regex": ((), "stop takes strings"),
    "no_stop_trim": ((False,), "include_stop_str_in_output keeps a stop string"),
    "min_new_tokens": ((), "it is called min_tokens here"),
    "max_new_tokens": ((), _MAX_TOKENS),
    "rid": ((), "it is called request_id here"),
    "session_id": ((), _CACHE),
    "session_params": ((), _CACHE),
    "extra_key": ((), "it is called cache_salt here"),
    "lora_path": ((), "this server has one model"),
    "custom_logit_processor": ((), ""),
    "return_hidden_states": ((False,), ""),
    "top_a": (_OFF, _SAMPLER),
    # llama.cpp
    "n_predict": ((), _MAX_TOKENS),
    "n_probs": (_OFF, "the fields are logprobs and top_logprobs"),
    "n_keep": (_OFF, "nothing is cut from a prompt"),
    "t_max_predict_ms": (_OFF, "it is called timeout here, in seconds"),
    "repeat_penalty": (_ONE, "it is called repetition_penalty here"),
    "repeat_last_n": ((), "repetition_penalty counts the whole prompt and answer"),
    "typical_p": (_ONE, _SAMPLER),
    "tfs_z": (_ONE, _SAMPLER),
    "mirostat": (_OFF, _SAMPLER),
    "mirostat_tau": ((), _SAMPLER),
    "mirostat_eta": ((), _SAMPLER),
    "dynatemp_range": (_OFF, _SAMPLER),
    "dynatemp_exponent": ((), _SAMPLER),
    "dry_multiplier": (_OFF, _SAMPLER),
    "dry_base": ((), _SAMPLER),
    "dry_allowed_length": ((), _SAMPLER),
    "dry_penalty_last_n": ((), _SAMPLER),
    "dry_sequence_breakers": ((), _SAMPLER),
    "xtc_probability": (_OFF, _SAMPLER),
    "xtc_threshold": ((), _SAMPLER),
    "samplers": ((), "the order of the samplers is fixed"),
    "cache_prompt": ((True,), _CACHE),
    "id_slot": ((-1,), "slots are given by the scheduler"),
    "timings_per_token": ((False,), "/metrics has times"),
    "return_tokens": ((False,), "/tokenize gives the ids of a prompt"),
    "lora": (([],), "this server has one model"),
    # Ollama
    "options": ((), "its fields stand beside messages or prompt"),
    "keep_alive": ((), "the model stays loaded"),
    "format": ((), "it is called response_format here"),
}

CHAT: Unserved = {
    **COMMON,
    "echo": ((False,), "the answer is what the model adds"),
    "verbosity": ((), "ask for it in the prompt"),
    "modalities": ((["text"],), 'only ["text"]'),
    "audio": ((), "text answers only"),
    "prediction": ((), ""),
    "functions": ((), "use tools"),
    "function_call": ((), "use tools"),
    "web_search_options": ((), "this server does not search"),
    "enable_thinking": ((), "it is the template's: put it into chat_template_kwargs"),
    "reasoning": ((), "reasoning_effort says how much the model thinks"),
    "thinking": (
        (),
        "chat_template_kwargs.enable_thinking turns it on and off, thinking_token_budget bounds it",
    ),
    "think": ((), "it is the template's: put enable_thinking into chat_template_kwargs"),
    "chat_template": ((), "the model's own template is used"),
    "documents": ((), "put them into the messages"),
    "mm_processor_kwargs": (({},), "pictures are read as the model's own preprocessing does"),
    "separate_reasoning": ((True,), 'reasoning_format "none" leaves reasoning in the content'),
    "stream_reasoning": ((True,), "reasoning comes as it is written"),
}

COMPLETION: Unserved = {
    **COMMON,
    "thinking_token_budget": ((), "a whole prompt is not known to think; use /v1/chat/completions"),
    "suffix": (("",), "write the prompt with the model's own tokens for filling in"),
    "prompt_embeds": ((), "prompts are text or token ids"),
    "top_logprobs": ((), "logprobs is the number of most likely tokens here"),
    "chat_template_kwargs": ((), "a whole prompt goes through no template; use /v1/chat/completions"),
    "tools": ((), "a whole prompt goes through no template; use /v1/chat/completions"),
    "image_data": ((), "pictures go to /v1/chat/completions"),
    "images": ((), "pictures go to /v1/chat/completions"),
}


def check_best_of(request: GenerationFields) -> None:
    """Raises RequestError where more answers would have to be made than are given."""
    if request.best_of is not None and request.best_of != (1 if request.n is None else request.n):
        raise not_supported(
            "best_of", "as many answers are made as are asked for with n", only_this_value=True
        )


def check_stream_options(request: GenerationFields) -> None:
    """Raises RequestError for options of a stream that is not asked for."""
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream to be true", field="stream_options")
