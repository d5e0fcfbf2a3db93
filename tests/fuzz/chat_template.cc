// Chat templates: an error that names the line, or prompts in which a control token comes from the
// template alone.
//
// Parts between bytes 0x1E: the template, the variables (chat_template_kwargs), and messages, whose
// first byte, if it is ASCII, is their role: s, u or a.
#include "server/chat/chat_template.h"

#include <string>

#include "tests/fuzz/fuzz.h"
#include "tests/server/rpc/fake_tokenizer.h"

namespace polysketch {
namespace {

using testing::FakeTokenizer;

constexpr char kSeparator = '\x1E';

std::vector<std::string> Parts(std::string_view bytes) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = std::min(bytes.find(kSeparator), bytes.size());
    parts.emplace_back(bytes.substr(0, end));
    if (end == bytes.size()) return parts;
    bytes.remove_prefix(end + 1);
  }
}

// What comes from JSON is UTF-8. The file of the template may be anything.
bool AllUtf8(const std::vector<std::string>& parts) {
  return std::all_of(parts.begin() + 1, parts.end(),
                     [](const std::string& part) { return ValidUtf8Prefix(part) == part.size(); });
}

std::vector<ChatMessage> Messages(const std::vector<std::string>& parts) {
  std::vector<ChatMessage> messages;
  for (size_t i = 2; i < parts.size(); ++i) {
    const std::string& part = parts[i];
    const bool ascii = !part.empty() && static_cast<unsigned char>(part[0]) < 0x80;
    const char role = ascii ? part[0] : 'u';
    messages.push_back({role == 's'   ? "system"
                        : role == 'a' ? "assistant"
                                      : "user",
                        part.substr(ascii ? 1 : 0), ""});
  }
  if (messages.empty()) messages.push_back({"user", "hello", ""});
  return messages;
}

bool HasControl(const std::vector<int32_t>& ids, const Tokenizer& tokenizer) {
  return std::any_of(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer.IsControl(id); });
}

void CheckRun(const MarkedText& text, const Tokenizer& tokenizer) {
  PS_CHECK(ValidUtf8Prefix(text.text()) == text.size());
  PS_CHECK(text.runs().empty() ? text.size() == 0 : text.runs().back().end == text.size());
  const MarkedText as_message(text.text(), TextOrigin::kMessage);
  const auto ids = EncodeMarkedText(tokenizer, as_message, /*continued=*/false);
  PS_CHECK(ids.ok()) << ids.status().ToString();
  PS_CHECK(!HasControl(*ids, tokenizer)) << "text of a message became a control token";
}

void Check(const std::vector<std::string>& parts) {
  static const FakeTokenizer tokenizer;
  ChatTemplate::Source source;
  source.text = parts[0];
  const auto made = ChatTemplate::Make(std::move(source), &tokenizer, /*add_bos=*/true);
  if (!made.ok()) return fuzz::CheckError(made.status());
  ChatOptions options;
  if (parts.size() > 1)
    options.variables = nlohmann::json::parse(parts[1], nullptr, /*allow_exceptions=*/false);
  if (options.variables.is_discarded()) options.variables = nullptr;
  const std::vector<ChatMessage> messages = Messages(parts);
  const auto text = (*made)->Render(messages, options);
  if (!text.ok()) return fuzz::CheckError(text.status());
  CheckRun(*text, tokenizer);
  const auto ids = (*made)->Encode(messages, options);
  PS_CHECK(ids.ok()) << ids.status().ToString();
  const auto turn = (*made)->EncodeTurn(messages, options);
  if (!turn.ok()) fuzz::CheckError(turn.status());
  options.add_generation_prompt = false;
  options.continue_final_message = true;
  const auto open = (*made)->Render(messages, options);
  if (!open.ok()) return fuzz::CheckError(open.status());
  CheckRun(*open, tokenizer);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  const std::vector<std::string> parts = Parts({reinterpret_cast<const char*>(data), size});
  if (!AllUtf8(parts)) return -1;
  Check(parts);
  return 0;
}
