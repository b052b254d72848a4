// Code that a put of tensors and an import of files share. Private to this folder.
#pragma once

#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/daemon_link.h"
#include "otel/api/span.h"
#include "proto/daemon.pb.h"
#include "tensorcast/client.h"

namespace tensorcast::client {

using OnPutResponse = absl::FunctionRef<absl::Status(v1::PutArtifactResponse&&)>;

// Sets the fields of `request` that a put and an import have in common.
absl::Status SetPutOptions(const PutOptions& options, v1::PutArtifactRequest& request);
absl::Status SetPutOptions(const PutOptions& options, v1::ImportArtifactRequest& request);

// Runs a put or an import, follows its events and returns its result. `once` makes one attempt. While the
// daemon is unavailable, repeats the whole attempt, because a restarted daemon has forgotten the previous
// attempt.
absl::StatusOr<v1::PutArtifactResult> FollowPut(otel::Span& span, const RequestContext& operation,
                                                const PutOptions& options, const std::string& what,
                                                absl::FunctionRef<absl::Status(OnPutResponse)> once);

absl::StatusOr<PutResult> ResultOf(const v1::PutArtifactResult& message);

// Makes one attempt of an import. The daemon receives the descriptors `files`. If `files` is empty, the
// daemon opens the path itself.
absl::Status ImportOnce(DaemonLink& link, const RequestContext& context, std::span<const int> files,
                        v1::ImportArtifactRequest& request, OnPutResponse on_response);

}  // namespace tensorcast::client
