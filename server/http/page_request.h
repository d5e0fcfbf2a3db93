// Requests and responses of the status page's paths that call RPCs: messages of polysketch.v1 in
// their JSON form.
#pragma once

#include <google/protobuf/message.h>

#include <string>

#include "base/status.h"
#include "server/http/http_exchange.h"

namespace polysketch {

// Parses the body, which has the JSON form of `message`: strings, booleans and integers. An error
// for a body that is too large, for one of another type, and for a request that a page of another
// site may have sent; INVALID_ARGUMENT names a field that is wrong.
Status ReadPageRequest(const HttpRequest& request, google::protobuf::Message* message);

// The message on a line of JSON.
Result<std::string> JsonLine(const google::protobuf::Message& message);

}  // namespace polysketch
