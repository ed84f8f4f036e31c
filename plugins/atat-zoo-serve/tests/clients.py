"""Thirty calls of a client of OpenAI's interface: `python clients.py CLIENT ADDRESS < calls.json` says what was wrong.

It imports nothing but the client, so that it runs in an environment that has no other package. A call has an
`endpoint`, `models`, `completions` or `chat`; what is `asked`, and what is `ours` and no field of OpenAI's; whether it
is a `stream`; and what is `expected`: texts, the reasons of their ends and the tokens, or an error's status and code.
"""

import json
import sys


def by_openai(address):
    """OpenAI's client; its own types validate each answer and each chunk."""
    import openai

    made = openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=60)

    def call(endpoint, asked, ours, stream):
        if endpoint == "models":
            (named,) = made.models.list().data
            return {"texts": [made.models.retrieve(named.id).id]}
        chat = endpoint == "chat"
        create = (made.chat.completions if chat else made.completions).create
        try:
            answer = create(model="tiny", stream=stream, **asked, extra_body=ours)
            if not stream:
                type(answer).model_validate(answer.to_dict())
                return found([answer], lambda each: each.message.content if chat else each.text)
            chunks = list(answer)
        except openai.APIStatusError as error:
            return {"status": error.status_code, "code": error.code, "type": error.type}
        for chunk in chunks if chat else ():  # the type of a completion's chunk asks for a reason before its end
            type(chunk).model_validate(chunk.to_dict())
        return found(chunks, lambda each: (each.delta.content or "") if chat else each.text)

    call.close = made.close
    return call


def found(answers, text_of):
    """Return what answers, or the chunks of one, have together."""
    texts, reasons = {}, {}
    for choice in (choice for answer in answers for choice in answer.choices):
        texts[choice.index] = texts.get(choice.index, "") + (text_of(choice) or "")
        reasons[choice.index] = choice.finish_reason or reasons.get(choice.index)
    usage = next((answer.usage for answer in reversed(answers) if getattr(answer, "usage", None)), None)
    tokens = {} if usage is None else {"tokens": [usage.prompt_tokens, usage.completion_tokens]}
    return {"texts": [texts[i] for i in sorted(texts)], "reasons": [reasons[i] for i in sorted(texts)], **tokens}


def by_litellm(address):
    """litellm, by its provider for servers like OpenAI's."""
    import litellm
    import openai

    litellm.suppress_debug_info = True
    how = {"api_base": address, "api_key": "none", "max_retries": 0, "timeout": 60}

    def call(endpoint, asked, ours, stream):
        if endpoint == "models" or (stream and asked.get("n", 1) > 1):  # of several it tells one reason
            return None
        chat = endpoint == "chat"
        try:
            if chat:
                answer = litellm.completion(model="openai/tiny", stream=stream, **asked, **how, extra_body=ours)
            else:
                answer = litellm.text_completion(
                    model="text-completion-openai/tiny", stream=stream, **asked, **how, extra_body=ours
                )
            if not stream:
                return found([answer], lambda each: each.message.content if chat else each.text)
            return found(list(answer), lambda each: each.delta.content if chat else each.text)
        except openai.APIStatusError as error:  # of which its own are kinds
            return {"status": error.status_code}

    return call


def by_langchain(address):
    """langchain-openai: its chat model, and its model of completions; n texts are not what it asks for."""
    import langchain_openai
    import openai

    how = {"base_url": address, "api_key": "none", "model": "tiny", "max_retries": 0, "timeout": 60}

    def call(endpoint, asked, ours, stream):
        if endpoint == "models" or asked.get("n", 1) > 1 or isinstance(asked.get("prompt"), list):
            return None
        asked = dict(asked)
        said = asked.pop("messages" if endpoint == "chat" else "prompt", "")
        seed, streamed = asked.pop("seed", None), asked.pop("stream_options", None)
        kind = langchain_openai.ChatOpenAI if endpoint == "chat" else langchain_openai.OpenAI
        usage = {"stream_usage": True} if endpoint == "chat" and streamed else {}
        # Its completions have a temperature of 0.7 by default.
        warm = {"temperature": asked.pop("temperature", 1)} if endpoint == "completions" else {}
        made = kind(**how, **usage, **warm, seed=seed, extra_body=ours or None)
        try:
            if endpoint == "chat":
                parts = list(made.stream(said, **asked)) if stream else [made.invoke(said, **asked)]
                reasons = [part.response_metadata.get("finish_reason") for part in parts]
                used = next((part.usage_metadata for part in reversed(parts) if part.usage_metadata), None)
                tokens = {"tokens": [used["input_tokens"], used["output_tokens"]]} if used else {}
                reason = next(filter(None, reasons))
                return {"texts": ["".join(part.content for part in parts)], "reasons": [reason], **tokens}
            if stream:
                return {"texts": ["".join(made.stream(said, **asked))]}
            made = made.generate([said], **asked)
            ((one,),) = made.generations
            used = made.llm_output["token_usage"]
            tokens = [used["prompt_tokens"], used["completion_tokens"]]
            return {"texts": [one.text], "reasons": [one.generation_info["finish_reason"]], "tokens": tokens}
        except openai.APIStatusError as error:
            return {"status": error.status_code, "code": error.code, "type": error.type}

    return call


CLIENTS = {"openai": by_openai, "litellm": by_litellm, "langchain": by_langchain}


def run(client, address, calls):
    """Return how many calls the client makes, and a line for each that is not answered as expected."""
    call, made, wrong = CLIENTS[client](address), 0, []
    for number, each in enumerate(calls, 1):
        got = call(each["endpoint"], each["asked"], each["ours"], each["stream"])
        if got is None:  # no call of this client
            continue
        made += 1
        expected, of = each["expected"], f"call {number}, {each['endpoint']} {each['asked']} {each['ours']}"
        both = got.keys() & expected.keys()  # not every client tells all
        if not both or any(got[key] != expected[key] for key in both):
            wrong.append(f"{of}: {got}, not {expected}")
    getattr(call, "close", lambda: None)()
    return made, wrong


if __name__ == "__main__":
    number, problems = run(*sys.argv[1:], json.load(sys.stdin))
    print("\n".join([*problems, f"{sys.argv[1]}: {number} calls, {len(problems)} answered otherwise"]))
    sys.exit(bool(problems))
