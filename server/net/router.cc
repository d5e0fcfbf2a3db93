#include "server/net/router.h"

namespace polysketch {
namespace {

// Answers a call of an unknown method. Such calls are counted too: a flood can consist of them.
class UnknownMethodCall final : public CountedReactor {
 public:
  UnknownMethodCall(ConnectionTable* connections, CallContext* context)
      : CountedReactor(connections, context) {
    Finish(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "unknown method"));
  }
};

}  // namespace

CallReactor* Router::CreateReactor(CallContext* context) {
  const auto found = handlers_.find(context->method());
  if (found != handlers_.end()) return found->second(context);
  return new UnknownMethodCall(connections_, context);
}

}  // namespace polysketch
