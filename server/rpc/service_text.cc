// Tokenize, Detokenize and GetModel.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <string>

#include "engine/tokenizer/encode_pace.h"
#include "engine/tokenizer/marked_text.h"
#include "server/convert/status_map.h"
#include "server/rpc/service.h"
#include "server/rpc/unary_call.h"

namespace polysketch {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr int kTokens = v1::TokenizeResponse::kTokensFieldNumber;
constexpr int kPieces = v1::TokenizeResponse::kPiecesFieldNumber;

// Ids of a text, whose memory `reply` holds as they are made.
Result<std::vector<int32_t>> EncodeHeld(const Tokenizer& tokenizer, std::string_view text,
                                        HeldMemory* reply) {
  std::vector<int32_t> ids;
  IncrementalEncoder encoder(&tokenizer);
  while (true) {
    const std::string_view slice = text.substr(0, EncodePace::kBytes);
    text.remove_prefix(slice.size());
    PS_ASSIGN_OR_RETURN(const std::vector<int32_t> more,
                        slice.empty() ? encoder.Finish() : encoder.Append(slice));
    PS_RETURN_IF_ERROR(reply->Hold(static_cast<int64_t>(more.size() * sizeof(int32_t))));
    ids.insert(ids.end(), more.begin(), more.end());
    if (slice.empty()) return ids;
  }
}

// A TokenizeResponse as bytes. The message itself takes several times their memory, which `reply`
// holds before they are made.
Result<grpc::ByteBuffer> TokenizeResponseBytes(const std::vector<int32_t>& ids,
                                               const Tokenizer& tokenizer, HeldMemory* reply) {
  size_t packed = 0;
  size_t pieces = 0;
  for (const int32_t id : ids) {
    packed += CodedOutputStream::VarintSize32SignExtended(id);
    const auto piece = static_cast<uint32_t>(tokenizer.Piece(id).size());
    pieces += 1 + CodedOutputStream::VarintSize32(piece) + piece;
  }
  const size_t head = packed == 0 ? 0 : 1 + CodedOutputStream::VarintSize32(uint32_t(packed));
  const size_t total = head + packed + pieces;
  if (total > kMaxReplyBytes) {
    return ResourceExhausted("text: expected a response of at most ", kMaxReplyBytes,
                             " bytes, found ", total, "; tokenize the text in parts");
  }
  PS_RETURN_IF_ERROR(reply->Hold(static_cast<int64_t>(total)));
  return MakeMessage(total, [&](CodedOutputStream* out) {
    if (packed > 0) {
      out->WriteTag(WireFormatLite::MakeTag(kTokens, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
      out->WriteVarint32(static_cast<uint32_t>(packed));
    }
    for (const int32_t id : ids) out->WriteVarint32SignExtended(id);
    for (const int32_t id : ids) {
      const std::string_view piece = tokenizer.Piece(id);
      out->WriteTag(WireFormatLite::MakeTag(kPieces, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
      out->WriteVarint32(static_cast<uint32_t>(piece.size()));
      out->WriteRaw(piece.data(), static_cast<int>(piece.size()));
    }
  });
}

Result<grpc::ByteBuffer> Tokenize(const UnaryInput& input) {
  v1::TokenizeRequest request;
  PS_RETURN_IF_ERROR(ParseUnary(input, &request));
  const RequestRules& rules = input.model.rules;
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "text"));
  if (request.add_bos() && rules.bos_id < 0) {
    return FailedPrecondition("add_bos: this model has no BOS");
  }
  std::vector<int32_t> ids;
  if (request.has_add_bos() ? request.add_bos() : rules.add_bos) ids.push_back(rules.bos_id);
  Result<std::vector<int32_t>> encoded =
      request.parse_special()
          ? EncodeMarkedText(*rules.tokenizer, MarkedText(request.text(), TextOrigin::kTemplate),
                             false)
          : EncodeHeld(*rules.tokenizer, request.text(), input.reply);
  if (!encoded.ok()) {
    const bool of_text = encoded.status().code() == Code::kInvalidArgument;
    return of_text ? Prefixed("text: ", encoded.status()) : encoded.status();
  }
  PS_RETURN_IF_ERROR(
      input.reply->HoldOnly(static_cast<int64_t>(encoded->size() * sizeof(int32_t))));
  ids.insert(ids.end(), encoded->begin(), encoded->end());
  encoded->clear();
  encoded->shrink_to_fit();
  Result<grpc::ByteBuffer> bytes = TokenizeResponseBytes(ids, *rules.tokenizer, input.reply);
  if (bytes.ok()) (void)input.reply->HoldOnly(static_cast<int64_t>(bytes->Length()));  // the less
  return bytes;
}

Result<grpc::ByteBuffer> Detokenize(const UnaryInput& input) {
  v1::DetokenizeRequest request;
  PS_RETURN_IF_ERROR(ParseUnary(input, &request));
  const RequestRules& rules = input.model.rules;
  PS_RETURN_IF_ERROR(RequireTokenizer(rules, "tokens"));
  const std::span<const int32_t> ids(request.tokens().data(), request.tokens().size());
  PS_RETURN_IF_ERROR(CheckTokenIds("tokens", ids, rules.vocab_size));
  // A byte that is not UTF-8 becomes U+FFFD, of three bytes.
  size_t most = 16;
  for (const int32_t id : ids) most += std::max<size_t>(rules.tokenizer->PieceBytes(id).size(), 3);
  if (most > kMaxReplyBytes) {
    return ResourceExhausted("tokens: expected a response of at most ", kMaxReplyBytes,
                             " bytes, found up to ", most, "; detokenize the ids in parts");
  }
  PS_RETURN_IF_ERROR(input.reply->Hold(2 * static_cast<int64_t>(most)));
  v1::DetokenizeResponse response;
  IncrementalDecoder decoder(rules.tokenizer, /*continued=*/false);
  for (const int32_t id : ids) response.mutable_text()->append(decoder.Append(id));
  response.mutable_text()->append(decoder.Finish());
  grpc::ByteBuffer bytes = SerializeMessage(response);
  (void)input.reply->HoldOnly(static_cast<int64_t>(bytes.Length()));  // less
  return bytes;
}

Status GetModel(const v1::GetModelRequest&, const RequestInfo&, const ServedModel& model,
                v1::GetModelResponse* response) {
  *response = model.description;
  return Status();
}

}  // namespace

void AddTextMethods(ServiceContext* context, Router* router) {
  AddUnaryWork("Tokenize", Tokenize, context, router);
  AddUnaryWork("Detokenize", Detokenize, context, router);
  AddUnaryMethod("GetModel", GetModel, context, router);
}

}  // namespace polysketch
