// What failed in one transfer, and the error of the request when no source is left.
//
// Thread-compatible.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/source/chunk_source.h"
#include "proto/global_store.pb.h"

namespace tensorcast::daemon {

class SourceFailures {
 public:
  // The last failure of each source is kept, and beside it that its bytes were wrong.
  void Note(const SourceFailure& failure);
  // The global store's last words.
  void NoteAnswer(const v1::RequestReplicaTransportResponse& answer);
  // What the global store named is waited for now; it is returned, for people.
  std::string NoteWait();

  // NOT_FOUND where nothing failed and nothing was waited for. Else the code of the failure that decides:
  // UNAVAILABLE of what may be otherwise in a moment, DATA_LOSS of wrong bytes, NOT_FOUND of files that went.
  // `lane`: forced; empty: none.
  absl::Status NothingLeft(const std::string& artifact_id, const std::string& lane) const;

 private:
  std::vector<SourceFailure> failures_;  // the first that failed first
  std::string no_source_reason_;
  std::vector<std::string> waited_for_;
  std::vector<std::string> waited_in_vain_;
};

}  // namespace tensorcast::daemon
