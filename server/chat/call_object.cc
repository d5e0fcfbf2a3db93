#include "server/chat/call_object.h"

#include <utility>

#include "base/bounded_json.h"

namespace polysketch {
namespace {

using Place = JsonScanner::Place;
using Kind = ToolEvent::Kind;

}  // namespace

CallObject::Result CallObject::Take(char c, ToolEvents* events) {
  const Place before = scanner_.place();
  const int depth_before = scanner_.depth();
  const Place after = scanner_.Take(c);
  if (after == Place::kError) return Result::kNoCall;
  if (in_value_) {
    // A number ends with the byte that follows it.
    const bool ends = scanner_.depth() <= 1 && after != Place::kString && after != Place::kScalar;
    const bool beyond = depth_before == 1 && before == Place::kScalar && (c == ',' || c == '}');
    if (!beyond) {
      if (streamed_ && announced_) {
        AddToolEvent(Kind::kArguments, {&c, 1}, events);
      } else {
        (streamed_ ? waiting_ : value_) += c;
      }
    }
    if (ends && !EndValue(events)) return Result::kNoCall;
  } else if (depth_before == 1) {
    if (before == Place::kKeyString || after == Place::kKeyString) key_ += c;
    const bool begins = before == Place::kValue && after != Place::kValue;
    if (begins && !BeginValue(c)) return Result::kNoCall;
    if (begins && streamed_) {
      if (name_) Announce(events);
      if (announced_) AddToolEvent(Kind::kArguments, {&c, 1}, events);
      if (!announced_) waiting_ += c;
    }
  }
  return after == Place::kEnd ? Complete(events) : Result::kOpen;
}

bool CallObject::BeginValue(char c) {
  const auto key = ParseJson(std::exchange(key_, ""));
  if (!key.ok()) return false;
  const bool name = *key == "name", arguments = *key == "arguments" || *key == "parameters";
  if (!name && !arguments && *key != "type" && *key != "id") return false;
  if ((name && name_) || (arguments && has_arguments_)) return false;
  member_ = name ? Member::kName : arguments ? Member::kArguments : Member::kOther;
  in_value_ = true;
  streamed_ = arguments && c == '{';
  value_.clear();
  if (!streamed_) value_ += c;
  if (arguments) has_arguments_ = true;
  return true;
}

bool CallObject::EndValue(ToolEvents* events) {
  in_value_ = false;
  if (std::exchange(streamed_, false) || member_ == Member::kOther) return true;
  const auto value = ParseJson(std::exchange(value_, ""));
  if (!value.ok()) return false;
  if (member_ == Member::kArguments) {
    if (value->is_null()) {
      has_arguments_ = false;
      return true;
    }
    // A string that holds the object.
    const auto* const text = value->get_ptr<const std::string*>();
    if (text == nullptr) return false;
    const auto object = ParseJson(*text);
    if (!object.ok() || !object->is_object()) return false;
    waiting_ = *text;
    if (name_) Announce(events);
    return true;
  }
  const auto* const name = value->get_ptr<const std::string*>();
  if (name == nullptr || !names_->contains(*name)) return false;
  name_ = *name;
  if (has_arguments_) Announce(events);
  return true;
}

void CallObject::Announce(ToolEvents* events) {
  announced_ = true;
  AddToolEvent(Kind::kCall, *name_, events);
  AddToolEvent(Kind::kArguments, std::exchange(waiting_, ""), events);
}

CallObject::Result CallObject::Complete(ToolEvents* events) {
  if (!name_) return Result::kNoCall;
  if (!has_arguments_) waiting_ = "{}";
  if (!announced_) Announce(events);
  return Result::kComplete;
}

}  // namespace polysketch
