// The bodies of the paths of OpenAI's and Anthropic's APIs: an error that names the field, or
// messages of polysketch.v1 that the RPCs accept or refuse.
//
// The first byte selects the path: 0 to 5. 6: the entry of a stored response, whose checksum is
// right.
#include "engine/snapshot/content_hash.h"
#include "engine/snapshot/fields.h"
#include "server/anthropic/messages.h"
#include "server/chat/chat_template.h"
#include "server/convert/wire.h"
#include "server/openai/chat_request.h"
#include "server/openai/completion_request.h"
#include "server/openai/response_store.h"
#include "server/openai/responses_request.h"
#include "server/openai/structured_output.h"
#include "server/openai/text_api.h"
#include "tests/fuzz/fuzz.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

using json = nlohmann::ordered_json;
using testing::FakeTokenizer;

const ServedModel& Model() {
  static const FakeTokenizer tokenizer;
  static const auto chat_template = ChatTemplate::Make(
      {.text = "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}"
               "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
       .pieces = {{"bos_token", "<s>"}, {"eos_token", "</s>"}}},
      &tokenizer, /*add_bos=*/true);
  PS_CHECK(chat_template.ok() && (*chat_template)->appends().ok());
  static const ServedModel model = [] {
    ServedModel served;
    served.chat_template = chat_template->get();
    served.trusts_request_template = true;
    served.rules = {.tokenizer = &tokenizer,
                    .bos_id = FakeTokenizer::kBos,
                    .vocab_size = FakeTokenizer::kVocabulary,
                    .max_prompt_tokens = 1 << 20,
                    .max_new_tokens = 1 << 20};
    return served;
  }();
  return model;
}

// Messages travel from the HTTP API to the RPC as bytes.
void CheckMessage(const google::protobuf::Message& message) {
  const std::unique_ptr<google::protobuf::Message> other(message.New());
  const Status status = ParseMessage(SerializeMessage(message), other.get());
  PS_CHECK(status.ok()) << status.ToString();
}

void CheckJob(const CompletionJob& job) {
  PS_CHECK(job.calls() >= 1 && job.calls() <= kMaxPrompts);
  PS_CHECK(job.options.choices >= 1 && job.options.choices <= 64);
  int64_t bytes = 0;
  for (size_t call = 0; call < job.calls(); ++call) {
    const v1::CompleteRequest request = job.Request(call);
    bytes += static_cast<int64_t>(request.ByteSizeLong());
    CheckMessage(request);
    const auto params = ToGenerateParams(request, Model().rules);
    if (!params.ok()) fuzz::CheckError(params.status());
  }
  PS_CHECK(bytes <= job.MemoryBytes());
}

std::string Serialized(const CompletionJob& job) {
  std::string bytes;
  for (size_t call = 0; call < job.calls(); ++call) {
    v1::CompleteRequest request = job.Request(call);
    request.mutable_sampling()->clear_logit_bias();  // a map has no order
    bytes += request.SerializeAsString();
  }
  return bytes;
}

Result<CompletionJob> Job(char path, const json& body) {
  if (path == '0') return ToCompletionJob(body);
  if (path == '1') return ToChatJob(body, Model());
  if (path == '5') return ToMessagesJob(body, Model());
  PS_ASSIGN_OR_RETURN(ResponseJob response, ToResponseJob(body, Model()));
  PS_CHECK(response.job.calls() == 1);
  PS_CHECK(json::accept(response.echo));
  return std::move(response.job);
}

void CheckCompletion(char path, const std::string& text) {
  const Result<json> body = ParseJsonObject(text);
  if (!body.ok()) return fuzz::CheckError(body.status());
  const Result<CompletionJob> job = Job(path, *body);
  if (!job.ok()) return fuzz::CheckError(job.status());
  CheckJob(*job);
  // The same object in other words.
  const Result<json> pretty = ParseJsonObject(body->dump(1, '\t', /*ensure_ascii=*/true));
  PS_CHECK(pretty.ok()) << pretty.status().ToString();
  const Result<CompletionJob> same = Job(path, *pretty);
  PS_CHECK(same.ok()) << same.status().ToString();
  PS_CHECK(Serialized(*job) == Serialized(*same));
}

// A text that parses does so with its schemas as strings too.
void CheckMessages(const std::string& text) {
  const Result<json> body = ParseCompletionBody(text);
  if (!body.ok()) return fuzz::CheckError(body.status());
  const Result<CompletionJob> job = ToMessagesJob(*body, Model());
  job.ok() ? CheckJob(*job) : fuzz::CheckError(job.status());
  CheckCompletion('5', text);
}

// `to_job`: of text_api.h.
template <typename Job>
void CheckText(const std::string& text, Job to_job) {
  const Result<json> body = ParseCompletionBody(text);
  if (!body.ok()) return fuzz::CheckError(body.status());
  const auto job = to_job(*body, Model());
  job.ok() ? CheckMessage(job->request) : fuzz::CheckError(job.status());
}

void CheckStored(const std::string& fields) {
  std::string bytes = "PSKRESP1" + fields;
  FieldWriter checksum;
  checksum(HashContent(bytes));
  bytes += std::move(checksum).Take();
  const Result<StoredResponse> response = DecodeResponse(bytes);
  if (!response.ok()) return fuzz::CheckError(response.status());
  PS_CHECK(EncodeResponse(*response) == bytes);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  if (size == 0) return 0;
  const char path = static_cast<char>(data[0]);
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (path) {
    case '0':
    case '1':
    case '2':
      CheckCompletion(path, text);
      break;
    case '3':
      CheckText(text, ToTokenizeJob);
      break;
    case '4':
      CheckText(text, ToDetokenizeJob);
      break;
    case '5':
      CheckMessages(text);
      break;
    case '6':
      CheckStored(text);
      break;
    default:
      return -1;  // not for the corpus
  }
  return 0;
}
