// The Vercel AI SDK: structured output, whole and streamed, and tool calls.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

const provider = createOpenAICompatible({
  name: "kvcast",
  baseURL: `${process.argv[2]}/v1`,
  supportsStructuredOutputs: true,
});
const options = { model: provider("demo-chat"), temperature: 0, maxOutputTokens: 200, maxRetries: 0 };
const person = Output.object({ schema: z.object({ name: z.string(), age: z.number().int() }) });
const asked = { ...options, prompt: "Ada is 36 years old.", output: person };
const weather = tool({
  description: "Tell the weather of a town.",
  inputSchema: z.object({ town: z.string() }),
});
const calling = {
  ...options,
  prompt: "How is the weather in Nantes?",
  tools: { weather },
  toolChoice: "required",
};
const called = ([{ toolName, input }]) => [toolName, input];
const results = {
  json_schema: (await generateText(asked)).output,
  streamed: await streamText(asked).output,
  "tool call": called((await generateText(calling)).toolCalls),
  "streamed tool call": called(await streamText(calling).toolCalls),
};
console.log(JSON.stringify(results));
