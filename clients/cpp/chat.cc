#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "base/nearest_word.h"
#include "clients/cpp/commands.h"
#include "clients/cpp/conversation.h"
#include "clients/cpp/http_call.h"
#include "clients/cpp/input.h"
#include "clients/cpp/input_lines.h"
#include "clients/cpp/terminal.h"

namespace polysketch {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

struct ChatCommand {
  std::string server;  // of the HTTP port; empty: the default port beside the gRPC port
  std::string tools;   // name of a file; empty: none
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

Status Prefixed(const std::string& prefix, const Status& status) {
  return status.ok() ? status : status.WithMessage(StrCat(prefix, status.message()));
}

// The whole of a text file.
Result<std::string> ReadTextFile(const std::string& path) {
  PS_ASSIGN_OR_RETURN(const auto file, InputFile::Open(path));
  TextReader reader(file.get());
  std::string text;
  while (true) {
    PS_ASSIGN_OR_RETURN(const std::string piece, reader.Read(kReadBytes));
    if (piece.empty()) return text;
    text += piece;
    if (text.size() > kMaxFileBytes)
      return InvalidArgument(path, ": expected at most ", kMaxFileBytes, " bytes, found more");
  }
}

class Chat {
 public:
  Chat(const ConnectionOptions& connection, ChatCommand command)
      : connection_(connection),
        server_(std::move(command.server)),
        conversation_(std::move(command.options)),
        terminal_(isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1),
        lines_(terminal_) {}

  // Returns the exit status.
  int Run() {
    int result = kExitOk;
    while (!quit_ && (terminal_ || result == kExitOk)) {
      const auto line = lines_.Next("> ");
      if (!line.ok()) {
        result = ReportUsageError(line.status());
        if (!terminal_) return result;
        continue;
      }
      if (!line->has_value()) break;
      if ((*line)->find_first_not_of(" \t") == std::string::npos) continue;
      result = Obey(**line);
      ForgetOthers();
    }
    if (terminal_ && !quit_) Print("\n");
    forks_.clear();
    conversation_ = Conversation({});
    ForgetOthers();
    return result;
  }

 private:
  struct SlashCommand {
    const char* name;
    const char* argument;
    const char* help;
    // The argument is empty without one.
    Status (Chat::*run)(const std::string& argument);
  };
  static const SlashCommand kSlashCommands[];

  static void Print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  // Takes a line that the user types. Returns the exit status.
  int Obey(const std::string& line) {
    if (!line.starts_with('/') || line.starts_with("//"))
      return Turn(line.substr(line.starts_with('/') ? 1 : 0), conversation_);
    const size_t space = std::min(line.size(), line.find_first_of(" \t"));
    const size_t argument = std::min(line.size(), line.find_first_not_of(" \t", space));
    const std::string name = line.substr(0, space);
    std::vector<std::string_view> names;
    for (const SlashCommand& command : Commands()) {
      names.emplace_back(command.name);
      if (name != command.name) continue;
      turn_result_ = kExitOk;
      const Status status = (this->*command.run)(line.substr(argument));
      return status.ok() ? turn_result_ : ReportUsageError(Prefixed(name + ": ", status));
    }
    const std::string near = NearestWord(name, names);
    return ReportUsageError(
        InvalidArgument(name, ": unknown command; ",
                        near.empty() ? "/help lists them, and // begins a message with a slash"
                                     : StrCat("did you mean ", near, "?")));
  }

  Status Help(const std::string&) {
    for (const SlashCommand& command : Commands())
      std::fprintf(stderr, "%-12s %-7s %s\n", command.name, command.argument, command.help);
    std::fputs("//...                begins a message with a slash\n", stderr);
    return Status();
  }
  Status Quit(const std::string&) {
    quit_ = true;
    return Status();
  }
  Status System(const std::string& text) {
    if (text.empty()) {
      Note(conversation_.system().empty() ? "there is no system message of the client"
                                          : conversation_.system());
    } else {
      conversation_.SetSystem(text);
    }
    return Status();
  }
  Status Regenerate(const std::string&) {
    const Conversation before = conversation_;
    const std::optional<std::string> text = conversation_.TakeBack();
    if (!text) return FailedPrecondition("expected a message to answer again, found none");
    turn_result_ = Turn(*text, before);
    return Status();
  }
  Status Save(const std::string& name) {
    if (name.empty()) return InvalidArgument("expected the name of a file, found none");
    Conversation other({});
    if (std::filesystem::exists(name)) {  // only a conversation is replaced
      PS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(name));
      PS_RETURN_IF_ERROR(Prefixed(name + ": ", other.Load(text)));
    }
    std::ofstream file(name, std::ios::binary | std::ios::trunc);
    file << conversation_.Save();
    file.close();
    return file ? Status() : InvalidArgument("cannot write ", name);
  }
  Status Load(const std::string& name) {
    if (name.empty()) return InvalidArgument("expected the name of a fork or a file, found none");
    if (const auto fork = forks_.find(name); fork != forks_.end()) {
      conversation_ = fork->second;
    } else {
      PS_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(name));
      PS_RETURN_IF_ERROR(Prefixed(name + ": ", conversation_.Load(text)));
    }
    Note(StrCat("messages in the conversation: ", conversation_.turns()));
    return Status();
  }
  Status Fork(const std::string& given) {
    const std::string name = given.empty() ? StrCat("fork-", forks_.size() + 1) : given;
    forks_.insert_or_assign(name, conversation_);
    Note(StrCat("the conversation so far is kept; /load ", name, " returns to it"));
    return Status();
  }
  static std::span<const SlashCommand> Commands();

  // Sends a message of the user, and results of calls until the model calls no tool. Without an
  // answer the conversation is `before` again. Returns the exit status.
  int Turn(const std::string& message, Conversation before) {
    conversation_.Say(message);
    while (true) {
      std::vector<ToolCall> calls;
      const Status status = Answer(&calls);
      bool goes_on = status.ok() && !calls.empty();
      for (const ToolCall& call : calls) goes_on = goes_on && ReturnResult(call);
      if (goes_on) continue;
      if (status.ok() && calls.empty()) return kExitOk;
      conversation_ = std::move(before);
      if (status.ok()) return kExitOk;  // the input has ended
      const bool by_user = status.code() == Code::kCancelled;
      Note(by_user ? "the answer was stopped; the conversation goes on without it"
                   : status.message());
      return by_user ? kExitOk : kExitFailed;
    }
  }

  // Prints the answer as it arrives, and adds it to the conversation.
  Status Answer(std::vector<ToolCall>* calls) {
    char last = '\n';
    AnswerStream answer([&last](std::string_view text) {
      if (text.empty()) return;
      Print(TerminalText(STDOUT_FILENO, text));
      last = text.back();
    });
    const StopOnInterrupt stop;
    const Status status = Ask(&answer);
    if (last != '\n') Print("\n");
    PS_RETURN_IF_ERROR(status);
    if (!answer.cut().empty() && terminal_) Note(StrCat("the answer is cut: ", answer.cut()));
    conversation_.Add(answer);
    ids_.insert(answer.id());
    *calls = answer.calls();
    return Status();
  }

  // Prints a call and adds the line that the user types as its result. False: there is none.
  bool ReturnResult(const ToolCall& call) {
    Print(TerminalText(STDOUT_FILENO, StrCat("call ", call.name, "(", call.arguments, ")\n")));
    const auto line = lines_.Next("result> ");
    if (!line.ok() || !line->has_value()) {
      Note(line.ok() ? "the call has no result: the input has ended" : line.status().message());
      return false;
    }
    conversation_.Return(call.id, **line);
    return true;
  }

  Status Ask(AnswerStream* answer) {
    bool whole = false;
    while (true) {
      const auto reply = Call("POST", "/v1/responses", conversation_.Request(whole), answer);
      PS_RETURN_IF_ERROR(reply.status());
      if (reply->status == 200) return answer->Finish();
      if (whole || !conversation_.MustBeWhole(reply->status, reply->body))
        return Unavailable(ApiError(reply->status, reply->body));
      whole = true;
    }
  }

  // Deletes the responses, and so their sessions, that neither the conversation nor a fork goes on
  // from. A server that cannot do it deletes the sessions after a while.
  void ForgetOthers() {
    std::set<std::string> kept = {conversation_.last_id()};
    for (const auto& [name, fork] : forks_) kept.insert(fork.last_id());
    for (auto id = ids_.begin(); id != ids_.end();) {
      if (kept.contains(*id)) {
        ++id;
        continue;
      }
      if (!id->empty()) (void)Call("DELETE", "/v1/responses/" + *id, "", nullptr);
      id = ids_.erase(id);
    }
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
  std::map<std::string, Conversation> forks_;  // by name
  std::set<std::string> ids_;                  // of responses that the server keeps
  const bool terminal_;                        // a person types and reads
  InputLines lines_;
  bool quit_ = false;
  int turn_result_ = kExitOk;  // exit status of the turn that a command makes
};

const Chat::SlashCommand Chat::kSlashCommands[] = {
    {"/save", "NAME", "writes the conversation to a file, as a body of /v1/responses", &Chat::Save},
    {"/load", "NAME", "goes on with the conversation of a fork or a file", &Chat::Load},
    {"/fork", "[NAME]", "keeps the conversation so far under a name and goes on with a copy",
     &Chat::Fork},
    {"/system", "[TEXT]", "sets the system message, or prints it", &Chat::System},
    {"/regenerate", "", "answers the last message again", &Chat::Regenerate},
    {"/help", "", "prints the commands", &Chat::Help},
    {"/quit", "", "ends the program", &Chat::Quit},
};

std::span<const Chat::SlashCommand> Chat::Commands() { return kSlashCommands; }

int RunChat(ChatCommand command, const ConnectionOptions& connection) {
  if (command.server.empty()) command.server = HttpServerBeside(connection.server);
  if (command.server.empty()) {
    return ReportUsageError(InvalidArgument("chat: expected --server HOST:PORT, since ",
                                            connection.server, " has no HTTP port"));
  }
  const Status status = CheckUtf8("--system", command.options.system);
  if (!status.ok()) return ReportUsageError(status);
  if (!command.tools.empty()) {
    const Result<std::string> text = ReadTextFile(command.tools);
    Result<nlohmann::json> tools = text.ok() ? ParseTools(*text) : text.status();
    if (!tools.ok()) return ReportUsageError(Prefixed("--tools: ", tools.status()));
    command.options.tools = *std::move(tools);
  }
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
      "On a terminal, control characters of an answer, and those that turn the direction of text,\n"
      "are shown as \\u001b. In a pipe the first error ends the program. A line that begins with "
      "/\n"
      "is a command: /help lists them.");
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
  AddOption(command, "--tools", "FILE",
            "JSON array of the tools that the model may call, as chat completions or the\n"
            "Responses API take them. A call is printed, and the next line is its result.",
            &chat->tools);
  AddOption(command, "--temperature", "T",
            "Sampling temperature, 0 to 100. 0: greedy. Default: that of the server.",
            &chat->options.temperature);
  AddOption(command, "--max-tokens", "N",
            "Maximum length of an answer in tokens. Default: --default-max-tokens of the server.",
            &chat->options.max_tokens);
}

}  // namespace polysketch
