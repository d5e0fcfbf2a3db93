#include "clients/cpp/batch_files.h"

#include <google/protobuf/util/json_util.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <system_error>
#include <utility>

#include "base/bounded_json.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

constexpr size_t kBatchReadBytes = 64 << 10;
// The message of a refusal begins with it; that of a server begins with a field.
constexpr std::string_view kLine = "line ";

// The rest of a line that has a url.
Status ParseHttpItem(const Json& json, BatchItem* item) {
  const Json& url = json["url"];
  const std::string path = url.is_string() ? url.get<std::string>() : "";
  const auto may_be_in_a_path = [](char c) { return c > ' ' && c <= '~'; };
  if (!path.starts_with("/v1/") || !std::ranges::all_of(path, may_be_in_a_path)) {
    return InvalidArgument("url: expected a path such as /v1/chat/completions, found ",
                           JsonText(url));
  }
  if (json.contains("method") && json["method"] != "POST")
    return InvalidArgument("method: expected \"POST\", found ", JsonText(json["method"]));
  const auto body = json.find("body");
  if (body == json.end() || !body->is_object()) {
    return InvalidArgument("body: expected a JSON object, found ",
                           body == json.end() ? "none" : JsonText(*body));
  }
  if (body->contains("stream") && (*body)["stream"] != false && !(*body)["stream"].is_null())
    return InvalidArgument("body.stream: expected false, found ", JsonText((*body)["stream"]));
  item->url = path;
  item->body = JsonText(*body);
  return Status();
}

// INVALID_ARGUMENT unless the line is a request that polysketch batch can send.
Status ParseItem(const std::string& line, BatchItem* item) {
  PS_ASSIGN_OR_RETURN(const Json json, ParseJson<Json>(line));
  if (!json.is_object()) return InvalidArgument("expected a JSON object");
  const auto id = json.find("custom_id");
  if (id == json.end() || !id->is_string()) {
    return InvalidArgument("custom_id: expected a string, found ",
                           id == json.end() ? "none" : JsonText(*id));
  }
  item->custom_id = *id;
  if (json.contains("url")) return ParseHttpItem(json, item);
  const auto body = json.find("body");
  if (body == json.end() || !body->is_object()) {
    return InvalidArgument("body: expected a CompleteRequest as a JSON object, found ",
                           body == json.end() ? "none" : JsonText(*body));
  }
  const auto parsed = google::protobuf::util::JsonStringToMessage(body->dump(), &item->request);
  if (!parsed.ok()) return InvalidArgument("body: ", std::string(parsed.message()));
  if (item->request.return_state()) {
    return InvalidArgument("body.return_state: expected false, found true");
  }
  return Status();
}

// The ids of the lines of a file that have a response, and its refusals.
void ReadEarlier(std::istream* file, std::unordered_set<std::string>* ids,
                 std::unordered_set<std::string>* refusals) {
  for (std::string line; std::getline(*file, line);) {
    const Result<Json> parsed = ParseJson<Json>(line);
    const Json json = parsed.ok() ? *parsed : Json();
    if (IsAnswered(json) && json.contains("custom_id") && json["custom_id"].is_string())
      ids->insert(json["custom_id"].get<std::string>());
    if (IsRefusal(json)) refusals->insert(line);
  }
}

// The size in bytes of the whole lines of a file.
int64_t WholeLines(std::istream* file) {
  file->seekg(0, std::ios::end);
  int64_t size = file->tellg();
  for (; size > 0; --size) {
    file->seekg(size - 1);
    if (file->get() == '\n') break;
  }
  return size;
}

}  // namespace

BatchItem ParseBatchItem(const std::string& line, int64_t line_number) {
  BatchItem item;
  item.line = line_number;
  const Status status = ParseItem(line, &item);
  if (!status.ok()) item.status = InvalidArgument(kLine, line_number, ": ", status.message());
  return item;
}

Result<std::optional<std::string>> BatchInput::ReadLine() {
  size_t scanned = next_;
  while (true) {
    const size_t end = buffer_.find('\n', scanned);
    if (end != std::string::npos || at_end_) {
      if (end == std::string::npos && next_ == buffer_.size()) return std::optional<std::string>();
      const size_t stop = std::min(end, buffer_.size());
      std::string line = buffer_.substr(next_, stop - next_);
      next_ = std::min(stop + 1, buffer_.size());
      ++lines_;
      return std::optional<std::string>(std::move(line));
    }
    buffer_.erase(0, next_);
    next_ = 0;
    scanned = buffer_.size();
    PS_ASSIGN_OR_RETURN(const std::string bytes, file_->Read(kBatchReadBytes));
    at_end_ = bytes.empty();
    buffer_ += bytes;
  }
}

Result<std::optional<BatchItem>> BatchInput::Next() {
  while (true) {
    PS_ASSIGN_OR_RETURN(const std::optional<std::string> line, ReadLine());
    if (!line) return std::optional<BatchItem>();
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    BatchItem item = ParseBatchItem(*line, lines_);
    if (item.custom_id.is_string()) {
      const auto id = item.custom_id.get<std::string>();
      if (done_.contains(id)) {
        ++skipped_;
        continue;
      }
      if (!seen_.insert(id).second && item.status.ok()) {
        item.status = InvalidArgument(kLine, lines_, ": custom_id: expected another one than ",
                                      "those of earlier lines, found '", id, "'");
      }
    }
    item.index = items_++;
    return std::optional<BatchItem>(std::move(item));
  }
}

Json BatchResponse(const BatchItem& item, Json response) {
  Json line;
  line["custom_id"] = item.custom_id;
  line["response"] = std::move(response);
  line["error"] = nullptr;
  return line;
}

Json BatchError(const BatchItem& item, Code code, const std::string& message,
                const std::string& reason) {
  Json line;
  line["custom_id"] = item.custom_id;
  line["response"] = nullptr;
  line["error"]["code"] = CodeName(code);
  line["error"]["message"] = message;
  if (!reason.empty()) line["error"]["reason"] = reason;
  return line;
}

Json BatchHttpResponse(const BatchItem& item, const BatchAnswer& answer) {
  Json line;
  line["id"] = StrCat("batch_req_", item.line);
  line["custom_id"] = item.custom_id;
  Json& response = line["response"];
  response["status_code"] = answer.status;
  response["request_id"] = answer.request_id;
  Result<Json> body = ParseJson<Json>(answer.body);
  response["body"] = body.ok() ? *std::move(body) : Json(answer.body);
  line["error"] = nullptr;
  return line;
}

bool IsAnswered(const Json& line) {
  if (!line.is_object()) return false;
  const auto response = line.find("response");
  if (response == line.end() || !response->is_object()) return false;
  const auto status = response->find("status_code");
  return status == response->end() || *status == 200;
}

bool IsRefusal(const Json& line) {
  const Json::json_pointer message("/error/message");
  return line.is_object() && line.contains(message) && line.at(message).is_string() &&
         line.at(message).get_ref<const std::string&>().starts_with(kLine);
}

Result<std::unique_ptr<BatchOutput>> BatchOutput::Open(const std::string& path, bool in_order,
                                                       std::unordered_set<std::string>* done) {
  std::unique_ptr<BatchOutput> output(new BatchOutput(in_order));
  if (path == "-") {
    output->stream_ = &std::cout;
    return output;
  }
  std::error_code error;
  if (std::filesystem::is_regular_file(path, error)) {
    std::ifstream earlier(path, std::ios::binary);
    const int64_t size = WholeLines(&earlier);
    std::filesystem::resize_file(path, static_cast<uintmax_t>(size), error);
    if (error) return InvalidArgument("--output: cannot write ", path, ": ", error.message());
    earlier.clear();
    earlier.seekg(0);
    ReadEarlier(&earlier, done, &output->refusals_);
  }
  output->file_.open(path, std::ios::binary | std::ios::app);
  if (!output->file_) return InvalidArgument("--output: cannot write ", path);
  output->stream_ = &output->file_;
  return output;
}

bool BatchOutput::Write(int64_t index, const Json& line) {
  if (!in_order_) return WriteLine(JsonText(line));
  waiting_.emplace(index, JsonText(line));
  bool written = true;
  while (!waiting_.empty() && waiting_.begin()->first == next_) {
    written = WriteLine(waiting_.begin()->second) && written;
    waiting_.erase(waiting_.begin());
    ++next_;
  }
  return written;
}

bool BatchOutput::Flush() {
  bool written = true;
  for (const auto& [index, line] : waiting_) written = WriteLine(line) && written;
  waiting_.clear();
  return written;
}

bool BatchOutput::WriteLine(const std::string& line) {
  if (refusals_.contains(line)) return true;
  const bool is_file = stream_ == &file_;
  *stream_ << (is_file ? line : TerminalText(STDOUT_FILENO, line)) << "\n" << std::flush;
  return stream_->good();
}

}  // namespace polysketch
