// The objects of the import as sources of one transfer: files on this node, and a shared origin that the
// global store told this node to read. The files are opened at most once in a transfer. A shared origin is
// opened at most once for each answer of the global store.
//
// A failed opening is noted in `failures`. Thread-compatible.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/request_context.h"
#include "core/artifact/manifest.h"
#include "core/artifact/origin.h"
#include "core/source/chunk_source.h"
#include "core/source/object_reader.h"
#include "daemon/sources/grant_requests.h"
#include "daemon/sources/source_failures.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class OriginSources {
 public:
  // All must outlive this object. `store` may be null if no answer names an origin. `reads_files`: true if
  // the transfer may read this node's files.
  OriginSources(const ObjectStore* store, const Manifest* manifest, bool reads_files, GrantRequests* requests,
                SourceFailures* failures)
      : store_(store),
        manifest_(*manifest),
        reads_files_(reads_files),
        requests_(*requests),
        failures_(*failures) {}

  // The origins that this answer names replace those of the previous answer.
  void NoteAnswer(const v1::RequestReplicaTransportResponse& answer, const std::string& node_id);
  // Whether the last answer told this node to read a shared origin, and TryShared was not called since.
  bool has_shared() const { return shared_.has_value(); }

  // Opens the files of the import on this node. Null: there are none, they cannot be read, or they were tried
  // before.
  std::unique_ptr<ChunkSource> TryFiles(const RequestContext& context);
  // Opens the shared origin that the last answer told this node to read. Null as for TryFiles.
  std::unique_ptr<ChunkSource> TryShared(const RequestContext& context);
  // Records that the source that TryShared returned has failed.
  void NoteSharedFailed() { requests_.NoteOriginFailed(reading_); }

 private:
  const ObjectStore* const store_;
  const Manifest& manifest_;
  const bool reads_files_;
  GrantRequests& requests_;
  SourceFailures& failures_;
  std::optional<Origin> files_;  // on this node, as the last answer named them
  bool files_tried_ = false;
  std::optional<v1::RequestReplicaTransportResponse> shared_;  // has a shared origin to open
  std::string reading_;  // the shared origin that was opened last, by its first URI
};

}  // namespace tensorcast::daemon
