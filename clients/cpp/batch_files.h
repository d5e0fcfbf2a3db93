// The files of polysketch batch: JSON lines with requests, and JSON lines with their results.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <unordered_set>

#include "clients/cpp/input.h"
#include "clients/cpp/json.h"
#include "polysketch/v1/polysketch.pb.h"

namespace polysketch {

// A line of the input: {"custom_id": ID, "body": REQUEST}, with the request in the JSON form of
// CompleteRequest that protobuf defines; or, as in OpenAI's batch files, {"custom_id": ID,
// "method": "POST", "url": PATH, "body": REQUEST}, with the body of a request to a path of the HTTP
// port.
struct BatchItem {
  int64_t index = 0;  // counts the items that are not skipped
  int64_t line = 0;   // of the input, from 1
  Json custom_id;     // a string; null: the line has none
  Status status;      // why the line is no request; the message begins with "line 3: "
  v1::CompleteRequest request;
  std::string url;   // the path; empty: a CompleteRequest
  std::string body;  // JSON, for `url`
};

// The answer to a request over HTTP.
struct BatchAnswer {
  int status = 0;
  std::string request_id;
  std::string body;
};

// Parses one line of the input. The index of the result is 0.
BatchItem ParseBatchItem(const std::string& line, int64_t line_number);

// Reads the input line by line.
class BatchInput {
 public:
  // done: ids of items to skip.
  BatchInput(std::unique_ptr<InputFile> file, std::unordered_set<std::string> done)
      : file_(std::move(file)), done_(std::move(done)) {}

  // Returns the next item whose id is not done; none at the end of the input. An id that an earlier
  // line has is an error of the item. An error is one of reading the file.
  Result<std::optional<BatchItem>> Next();
  // Thread-safe. Ends a waiting Next, as if the input had ended.
  void Interrupt() { file_->Interrupt(); }
  int64_t skipped() const { return skipped_; }

 private:
  Result<std::optional<std::string>> ReadLine();

  const std::unique_ptr<InputFile> file_;
  const std::unordered_set<std::string> done_;
  std::unordered_set<std::string> seen_;
  std::string buffer_;
  size_t next_ = 0;  // index of the next byte in buffer_
  bool at_end_ = false;
  int64_t lines_ = 0;
  int64_t items_ = 0;
  int64_t skipped_ = 0;
};

// {"custom_id": ID, "response": RESPONSE, "error": null}.
Json BatchResponse(const BatchItem& item, Json response);
// {"custom_id": ID, "response": null, "error": {"code": CODE, "message": MESSAGE, "reason":
// REASON}}. An empty reason is left out.
Json BatchError(const BatchItem& item, Code code, const std::string& message,
                const std::string& reason = "");

// {"id": ID, "custom_id": ID, "response": {"status_code": STATUS, "request_id": ID, "body": BODY},
// "error": null}, as in OpenAI's output files.
Json BatchHttpResponse(const BatchItem& item, const BatchAnswer& answer);
// Whether a line has a response that is no error.
bool IsAnswered(const Json& line);
// Whether a line says that a line of the input is no request.
bool IsRefusal(const Json& line);

// Writes results, each as it comes or in the order of the input.
class BatchOutput {
 public:
  // "-" is standard output. A file is continued: `done` gets the ids of its lines that are
  // answered, and a refusal that it has is not written again. A last line without its end, which a
  // killed process leaves, is removed.
  static Result<std::unique_ptr<BatchOutput>> Open(const std::string& path, bool in_order,
                                                   std::unordered_set<std::string>* done);

  // index: of the item. False: the output cannot be written.
  bool Write(int64_t index, const Json& line);
  // Writes the results that wait, of a batch that ends early. False: as for Write.
  bool Flush();
  // The number of results that wait for those of earlier items.
  size_t waiting() const { return waiting_.size(); }

 private:
  explicit BatchOutput(bool in_order) : in_order_(in_order) {}
  bool WriteLine(const std::string& line);

  const bool in_order_;
  std::unordered_set<std::string> refusals_;  // lines that the file has
  std::ofstream file_;
  std::ostream* stream_ = nullptr;
  int64_t next_ = 0;                        // index of the next line, if in_order_
  std::map<int64_t, std::string> waiting_;  // by index
};

}  // namespace polysketch
