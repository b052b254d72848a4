#include "daemon/sources/origin_sources.h"

#include <utility>

#include "absl/status/statusor.h"
#include "core/artifact/object_uri.h"
#include "core/replica/transfer_report.h"
#include "daemon/sources/origin_files.h"
#include "rpc/convert/convert.h"

namespace tensorcast::daemon {

void OriginSources::NoteAnswer(const v1::RequestReplicaTransportResponse& answer,
                               const std::string& node_id) {
  files_.reset();
  for (const v1::Origin& message : answer.origins()) {
    if (message.node_id() != node_id) continue;
    Origin origin = rpc::FromProto(message);
    if (IsShared(origin)) continue;
    files_ = std::move(origin);
    break;
  }
  shared_.reset();
  if (answer.has_origin_to_read()) shared_ = answer;
}

std::unique_ptr<ChunkSource> OriginSources::TryFiles(const RequestContext& context) {
  if (!reads_files_ || !files_.has_value() || std::exchange(files_tried_, true)) return nullptr;
  absl::StatusOr<std::unique_ptr<ChunkSource>> source =
      OpenOriginSource(context, *store_, *files_, manifest_);
  if (source.ok()) return *std::move(source);
  const std::string uri = files_->objects.empty() ? "origin" : files_->objects.front().uri;
  const std::string lane = IsObjectUri(uri) ? uri.substr(0, uri.find(':')) : std::string(kDiskLane);
  failures_.NoteUnopened({.source = {SourceType::kDisk, lane, uri}, .status = source.status()});
  return nullptr;
}

std::unique_ptr<ChunkSource> OriginSources::TryShared(const RequestContext& context) {
  const std::optional<v1::RequestReplicaTransportResponse> told = std::exchange(shared_, std::nullopt);
  if (!told.has_value() || told->origin_to_read().objects().empty()) return nullptr;
  const Origin origin = rpc::FromProto(told->origin_to_read());
  const std::string& uri = origin.objects.front().uri;
  absl::StatusOr<std::unique_ptr<ChunkSource>> source =
      OpenOriginSource(context, *store_, origin, manifest_, told->origin_share(), told->origin_shares());
  if (source.ok()) {
    requests_.NoteOriginRead(uri);
    reading_ = uri;
    return *std::move(source);
  }
  failures_.NoteUnopened(
      {.source = {SourceType::kDisk, std::string(kDiskLane), uri}, .status = source.status()});
  requests_.NoteOriginFailed(uri);
  return nullptr;
}

}  // namespace tensorcast::daemon
