// Finds the sources of one materialisation: first the grants of the global store, several at once; then the
// files of this node that the artifact was imported from; then again sources that failed, and those that come
// soon.
//
// Each grant ends exactly once, with its outcome, and its pull is closed at the source; both happen in the
// background.
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
  // "local" or another lane between nodes: only other nodes, over that lane. "disk": only this node's packed
  // file and origins. Empty: all, the fastest first.
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

  // The sources of one materialisation; one thread at a time uses the provider, as SourceProvider says.
  //
  // - All granted sources are opened side by side, and the first that answers is used first. But where the
  //   best of them is a whole replica on this host, it is opened alone at first. One that is
  //   still unanswered long after another one was answered is overtaken: its grant ends as failed with
  //   DEADLINE_EXCEEDED, and its peer rests (overtaken_peers.h).
  // - While no source answers, or those in use give nothing, the global store is asked for others, and the
  //   files of the import on this node are opened too. While sources are in use, the store is asked a few
  //   times for more and better ones. A whole replica on this host is used without any other source.
  // - While no source can give bytes but one may soon, Next waits and asks again until the context ends. A
  //   failed source is asked again when nothing else is left, unless its bytes were wrong or it failed too
  //   often in a row.
  //
  // Errors of Next, when nothing is left: NOT_FOUND when the artifact is not published or no node ever had
  // it, DATA_LOSS when every source was corrupt, UNAVAILABLE otherwise. The message lists what was tried and
  // waited for.
  std::shared_ptr<SourceProvider> Find(SourceRequest request) const;

 private:
  const Options options_;
};

}  // namespace tensorcast::daemon
