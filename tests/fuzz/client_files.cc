// Files of the clients: prompts, token ids and batches. An error that a terminal can show, or the
// same content whatever the pieces in which it is read.
//
// The first byte selects the kind: p, t, b, or e for text that a terminal shows.
#include <charconv>

#include "clients/cpp/batch_files.h"
#include "clients/cpp/input.h"
#include "clients/cpp/terminal.h"
#include "tests/fuzz/fuzz.h"

namespace polysketch {
namespace {

std::unique_ptr<InputFile> Open(std::string_view bytes) {
  static fuzz::MemoryFile file;
  file.Write(bytes);
  auto opened = InputFile::Open(file.path());
  PS_CHECK(opened.ok()) << opened.status().ToString();
  return *std::move(opened);
}

void CheckPrompt(std::string_view bytes) {
  // A long file in pieces of some bytes is system calls and nothing else.
  const size_t least = bytes.size() / 64 + 1;
  for (const size_t piece : {least, least + 6, size_t{1} << 16}) {
    const auto file = Open(bytes);
    TextReader reader(file.get());
    std::string text;
    while (true) {
      const auto more = reader.Read(piece);
      if (!more.ok()) {
        PS_CHECK(ValidUtf8Prefix(bytes) < bytes.size());
        const std::string end = StrCat(" ", ValidUtf8Prefix(bytes));
        PS_CHECK(more.status().message().ends_with(end)) << more.status().message();
        fuzz::CheckError(more.status());
        break;
      }
      PS_CHECK(ValidUtf8Prefix(*more) == more->size());
      text += *more;
      if (!more->empty()) continue;
      PS_CHECK(text == bytes);
      break;
    }
  }
}

// The ids of a text, or nothing where a word is none.
std::optional<std::vector<int32_t>> Ids(std::string_view text) {
  std::vector<int32_t> ids;
  constexpr std::string_view kSpaces = " \n\t\r\v\f";
  while (!text.empty()) {
    if (kSpaces.find(text.front()) != std::string_view::npos) {
      text.remove_prefix(1);
      continue;
    }
    int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    const bool ended = text.empty() || kSpaces.find(text.front()) != std::string_view::npos;
    if (error != std::errc() || !ended) return std::nullopt;
    ids.push_back(id);
  }
  return ids;
}

void CheckTokens(std::string_view bytes) {
  const auto expected = Ids(bytes);
  for (const size_t piece : {size_t{1}, size_t{5}, size_t{1} << 16}) {
    const auto file = Open(bytes);
    TokenReader reader(file.get());
    std::vector<int32_t> ids;
    while (true) {
      const auto more = reader.Read(piece);
      if (!more.ok()) {
        PS_CHECK(!expected.has_value()) << more.status().message();
        PS_CHECK(!more.status().message().empty());  // a terminal shows it through TerminalText
        break;
      }
      PS_CHECK(more->size() <= piece);
      ids.insert(ids.end(), more->begin(), more->end());
      if (!more->empty()) continue;
      PS_CHECK(expected.has_value() && ids == *expected);
      break;
    }
  }
}

void CheckBatch(std::string_view bytes) {
  BatchInput batch(Open(bytes), {"done"});
  std::unordered_set<std::string> ids;
  for (int64_t index = 0;; ++index) {
    const auto item = batch.Next();
    PS_CHECK(item.ok()) << item.status().ToString();
    if (!item->has_value()) break;
    const BatchItem& one = **item;
    PS_CHECK(one.index == index) << one.index;
    const std::string line =
        JsonText(one.status.ok() ? BatchResponse(one, MessageToJson(one.request))
                                 : BatchError(one, one.status.code(), one.status.message()));
    PS_CHECK(ValidUtf8Prefix(line) == line.size() && line.find('\n') == std::string::npos);
    PS_CHECK(!Json::parse(line, nullptr, /*allow_exceptions=*/false).is_discarded());
    if (!one.status.ok()) {
      PS_CHECK(one.status.message().starts_with("line ")) << one.status.message();
      continue;
    }
    PS_CHECK(ids.insert(one.custom_id.get<std::string>()).second && !ids.contains("done"));
    PS_CHECK(!one.request.return_state());
  }
}

void CheckTerminal(std::string_view bytes) {
  const std::string text = EscapeControls(bytes);
  PS_CHECK(ValidUtf8Prefix(text) == text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    PS_CHECK(c >= 0x20 || c == '\n' || c == '\t') << i;
    PS_CHECK(c != 0x7F) << i;
    const bool c1 = c == 0xC2 && i + 1 < text.size() && static_cast<uint8_t>(text[i + 1]) < 0xA0;
    PS_CHECK(!c1) << i;
  }
  PS_CHECK(EscapeControls(text) == text);
}

}  // namespace
}  // namespace polysketch

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace polysketch;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 'p':
      CheckPrompt(bytes);
      break;
    case 't':
      CheckTokens(bytes);
      break;
    case 'b':
      CheckBatch(bytes);
      break;
    case 'e':
      CheckTerminal(bytes);
      break;
    default:
      return -1;
  }
  return 0;
}
