#include "client/put_calls.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/steady_time.h"
#include "client/session.h"
#include "core/handles/handle_client.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/convert/transfer_reports.h"

namespace tensorcast::client {
namespace {

constexpr absl::Duration kOfferTimeout = absl::Seconds(10);  // the daemon answers at once or not at all

template <class Request>
absl::Status SetOptionsOf(const PutOptions& options, Request& request) {
  TC_ASSIGN_OR_RETURN(const Location location, Location::Parse(options.location));
  *request.mutable_location() = rpc::ToProto(location);
  request.set_durable(options.durable);
  request.set_archive(options.archive);
  request.set_wait_for_space(options.wait_for_space);
  request.set_pin(options.pin);
  request.mutable_difference()->set_base(options.base);
  request.mutable_difference()->set_required(options.require_difference);
  if (!options.key.has_value()) {
    // Without a key nothing is bound, and there are no versions to keep.
    if (!options.keep.has_value()) return absl::OkStatus();
    return absl::InvalidArgumentError("put: keep needs a key, and no key was given; name a key");
  }
  if (options.keep.has_value()) request.mutable_binding()->set_keep(*options.keep);
  request.mutable_binding()->set_key(*options.key);
  if (options.expected_revision.has_value()) {
    request.mutable_binding()->set_expected_revision(*options.expected_revision);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SetPutOptions(const PutOptions& options, v1::PutArtifactRequest& request) {
  return SetOptionsOf(options, request);
}

absl::Status SetPutOptions(const PutOptions& options, v1::ImportArtifactRequest& request) {
  return SetOptionsOf(options, request);
}

// All attempts have one request id, so a put that succeeded without an answer is not done twice.
absl::StatusOr<v1::PutArtifactResult> FollowPut(otel::Span& span, const RequestContext& operation,
                                                const PutOptions& options, const std::string& what,
                                                absl::FunctionRef<absl::Status(OnPutResponse)> once) {
  std::optional<v1::PutArtifactResult> result;
  const auto on_response = [&](v1::PutArtifactResponse&& response) {
    if (response.has_progress() && options.on_progress) {
      options.on_progress(rpc::FromProto(response.progress()));
    }
    if (response.has_result()) result = std::move(*response.mutable_result());
    return absl::OkStatus();
  };
  const absl::Status status =
      rpc::RetryUnavailable(operation, {.what = kAsking}, [&](const rpc::Attempt& attempt) {
        rpc::NoteRetry(span, attempt);
        return once(on_response);
      });
  if (!status.ok()) {
    // Errors of the daemon often name the operation already.
    return absl::StartsWith(status.message(), what) ? status : Annotate(status, what);
  }
  if (result.has_value()) return *std::move(result);
  return absl::InternalError(
      absl::StrCat(what, ": the daemon ended the call without a result; report this defect of the daemon"));
}

absl::StatusOr<PutResult> ResultOf(const v1::PutArtifactResult& message) {
  PutResult result{.artifact_id = message.artifact_id(),
                   .replica_id = message.replica().replica_id(),
                   .existed = message.existed(),
                   .key_revision = message.key_revision(),
                   .files_id = message.files_id()};
  if (message.has_transfer()) {
    TC_ASSIGN_OR_RETURN(result.transfer, rpc::FromProto(message.transfer()));
  }
  if (message.has_difference()) {
    const v1::Difference& made = message.difference();
    result.difference = {made.artifact_id(), made.base_id(), made.target_id(), made.image_bytes()};
  }
  result.no_difference = message.no_difference();
  return result;
}

absl::Status ImportOnce(DaemonLink& link, const RequestContext& context, std::span<const int> files,
                        v1::ImportArtifactRequest& request, OnPutResponse on_response) {
  std::unique_ptr<OfferedMemory> offer;
  if (!files.empty()) {
    TC_ASSIGN_OR_RETURN(const std::string handle_socket, link.HandleSocket(context));
    TC_ASSIGN_OR_RETURN(offer,
                        OfferedMemory::OfferFiles(handle_socket, files,
                                                  std::min(context.deadline, SteadyNow() + kOfferTimeout),
                                                  context.cancellation));
    // The daemon takes the files while the offer lives, so `offer` must outlast the call. A restarted daemon
    // knows no earlier token: each attempt offers again.
    request.set_offer_token(offer->token());
  }
  return rpc::CallServerStream(link.daemon(), &v1::StoreDaemon::Stub::ImportArtifact, context, request,
                               on_response, {.retry_for = absl::ZeroDuration(), .what = "follow the import"});
}

}  // namespace tensorcast::client
