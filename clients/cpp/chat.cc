#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "clients/cpp/commands.h"
#include "clients/cpp/conversation.h"
#include "clients/cpp/http_call.h"
#include "clients/cpp/input.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

constexpr size_t kReadBytes = size_t{64} << 10;

struct ChatCommand {
  std::string server;  // of the HTTP port; empty: the default port beside the gRPC port
  ChatOptions options;
};

volatile sig_atomic_t stopped = 0;

// In the object's life SIGINT sets `stopped`; before and after, it ends the program.
class StopOnInterrupt {
 public:
  StopOnInterrupt() {
    stopped = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { stopped = 1; };
    sigaction(SIGINT, &action, &before_);
  }
  ~StopOnInterrupt() {
    sigaction(SIGINT, &before_, nullptr);
    stopped = 0;
  }
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

 private:
  struct sigaction before_ {};
};

// Lines of standard input, in UTF-8.
class Lines {
 public:
  Lines() : file_(InputFile::Open("-").value()), reader_(file_.get()) {}
  // The next line without its end; nullopt: the end of input.
  Result<std::optional<std::string>> Next() {
    size_t end;
    while ((end = text_.find('\n')) == std::string::npos) {
      PS_ASSIGN_OR_RETURN(const std::string more, reader_.Read(kReadBytes));
      if (!more.empty()) {
        text_ += more;
        continue;
      }
      if (text_.empty()) return std::optional<std::string>();
      return std::optional(std::exchange(text_, ""));
    }
    std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    if (line.ends_with('\r')) line.pop_back();
    return std::optional(std::move(line));
  }

 private:
  const std::unique_ptr<InputFile> file_;
  TextReader reader_;
  std::string text_;
};

class Chat {
 public:
  Chat(const ConnectionOptions& connection, ChatCommand command)
      : connection_(connection),
        server_(std::move(command.server)),
        conversation_(std::move(command.options)),
        terminal_(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {}

  // Returns the exit status.
  int Run() {
    Lines lines;
    int result = kExitOk;
    while (terminal_ || result == kExitOk) {
      if (terminal_) Print("> ");
      const auto line = lines.Next();
      if (!line.ok()) return ReportUsageError(line.status());
      if (!line->has_value()) break;
      if ((*line)->find_first_not_of(" \t") == std::string::npos) continue;
      result = Answer(**line);
    }
    if (terminal_) Print("\n");
    Forget(conversation_.last_id());
    return result;
  }

 private:
  static void Print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  // Prints the answer to `line` as it arrives. Returns the exit status.
  int Answer(const std::string& line) {
    char last = '\n';
    AnswerStream answer([&last](std::string_view text) {
      if (text.empty()) return;
      Print(TerminalText(STDOUT_FILENO, text));
      last = text.back();
    });
    const StopOnInterrupt stop;
    Status status = Ask(line, &answer);
    if (last != '\n') Print("\n");
    if (status.code() == Code::kCancelled && stopped != 0) {
      Note("the answer was stopped; the conversation goes on without it");
      return kExitOk;
    }
    if (!status.ok()) {
      Note(status.message());
      return kExitFailed;
    }
    if (!answer.cut().empty() && terminal_) Note(StrCat("the answer is cut: ", answer.cut()));
    const std::string before = conversation_.last_id();
    conversation_.Add(line, answer);
    Forget(before);
    return kExitOk;
  }

  Status Ask(const std::string& line, AnswerStream* answer) {
    bool whole = false;
    while (true) {
      const auto reply = Call("POST", "/v1/responses", conversation_.Request(line, whole), answer);
      PS_RETURN_IF_ERROR(reply.status());
      if (reply->status == 200) return answer->Finish();
      if (whole || !conversation_.MustBeWhole(reply->status, reply->body))
        return Unavailable(ApiError(reply->status, reply->body));
      whole = true;
    }
  }

  // Deletes a response, and so its session. A server that cannot do it deletes the session after a while.
  void Forget(const std::string& id) {
    if (!id.empty()) (void)Call("DELETE", "/v1/responses/" + id, "", nullptr);
  }

  Result<HttpReply> Call(const char* method, const std::string& path, const std::string& body,
                         AnswerStream* answer) {
    const auto take = [answer](std::string_view bytes) {
      return answer == nullptr ? Status() : answer->Add(bytes);
    };
    return CallHttp(connection_, {.server = server_, .method = method, .path = path, .body = body},
                    take, [] { return stopped != 0; });
  }

  static void Note(const std::string& text) {
    std::fprintf(stderr, "polysketch: %s\n", TerminalText(STDERR_FILENO, text).c_str());
  }

  const ConnectionOptions& connection_;
  const std::string server_;
  Conversation conversation_;
  const bool terminal_;  // a person types and reads
};

int RunChat(ChatCommand command, const ConnectionOptions& connection) {
  if (command.server.empty()) command.server = HttpServerBeside(connection.server);
  if (command.server.empty()) {
    return ReportUsageError(InvalidArgument("chat: expected --server HOST:PORT, since ",
                                            connection.server, " has no HTTP port"));
  }
  const Status status = CheckUtf8("--system", command.options.system);
  if (!status.ok()) return ReportUsageError(status);
  return Chat(connection, std::move(command)).Run();
}

}  // namespace

void AddChat(CommandLine* line) {
  const auto chat = std::make_shared<ChatCommand>();
  CLI::App* const command = AddCommand(
      line->app, "chat", "Answers each line of standard input, in one conversation.",
      [=] { line->run = [=] { return RunChat(*chat, line->call.connection); }; },
      "Speaks to the HTTP port of a server whose model has a chat template. The server keeps the\n"
      "conversation in a session, so that a turn costs its new tokens. Ctrl-C stops an answer, "
      "which\n"
      "the conversation then lacks; between answers it ends the program, as the end of input "
      "does.\n"
      "On a terminal, control characters of an answer are shown as \\u001b. In a pipe the first "
      "error\n"
      "ends the program.");
  SetOptionGroup(command, "Call options");
  AddOption(command, "--server", "HOST:PORT",
            "Address of the HTTP port. Default: port 8000 of the host of POLYSKETCH_SERVER;\n"
            "without one: 127.0.0.1:8000.",
            [chat](const std::string& text) -> Status {
              PS_ASSIGN_OR_RETURN(chat->server, HttpServerAddress(text));
              return Status();
            });
  AddCredentialOptions(command, &line->call.connection);
  SetOptionGroup(command, "Options");
  AddOption(command, "--system", "TEXT",
            "System message of the conversation. Default: that of the model's chat template,\n"
            "if it has one.",
            &chat->options.system);
  AddOption(command, "--temperature", "T",
            "Sampling temperature, 0 to 100. 0: greedy. Default: that of the server.",
            &chat->options.temperature);
  AddOption(command, "--max-tokens", "N",
            "Maximum length of an answer in tokens. Default: --default-max-tokens of the server.",
            &chat->options.max_tokens);
}

}  // namespace polysketch
