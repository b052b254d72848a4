// Finds the sources of one materialization: replicas on other nodes, and the objects of the import.
//
// Each grant ends exactly once. In the background, the global store gets the grant's outcome, and the pull is
// closed at the source.
#pragma once

#include <memory>
#include <string>

#include "core/artifact/manifest.h"
#include "core/device/device_runtime.h"
#include "core/replica/replica.h"
#include "core/source/chunk_source.h"
#include "core/source/object_reader.h"
#include "daemon/sources/held_grants.h"

namespace tensorcast::daemon {

struct SourceRequest {
  std::shared_ptr<const Manifest> manifest;
  Location destination;
  // "local" or another lane between nodes: use only other nodes, over that lane. "disk": use only this node's
  // packed file and origins. Empty: use all, the fastest first.
  std::string lane;
};

class SourceFinder {
 public:
  struct Options {
    HeldGrants::Parts grants;
    const DeviceRuntime* devices = nullptr;      // may be null; must outlive the providers
    std::shared_ptr<const ObjectStore> objects;  // of imports
  };

  explicit SourceFinder(const Options& options) : options_(options) {}

  // The sources of one materialization. Only one thread at a time may use the provider (see SourceProvider).
  //
  // - Granted sources are opened in parallel (offered_grants.h). The first source that answers is used first.
  //   A whole replica on this host is used alone.
  // - A source is overtaken if its opening takes much longer than the first opening took. Its grant ends with
  //   DEADLINE_EXCEEDED, and its peer rests (overtaken_peers.h).
  // - While no source delivers bytes, the finder asks the global store for other sources, and opens the files
  //   of the import on this node. While sources deliver, the finder asks the store a few times for more.
  // - While no source can deliver bytes now, but one may soon, Next waits and asks again until the context
  //   ends. When nothing else is left, failed sources are tried again. A source with wrong bytes, or with too
  //   many consecutive failures, is not tried again.
  //
  // Errors of Next: NOT_FOUND when the artifact is not published, and the error of a context that ends. When
  // no source is left, the error of SourceFailures::NothingLeft (source_failures.h); its message lists what
  // was tried and waited for.
  std::shared_ptr<SourceProvider> Find(SourceRequest request) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
