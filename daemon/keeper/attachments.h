// Processes that are attached to replicas in host memory, as the keeper stores them: each with the segments
// that it maps and its pidfd, which names this process and never a later one with the same number.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/posix/unique_fd.h"
#include "daemon/keeper/keeper.h"

namespace tensorcast::daemon {

struct Attachment {
  std::string id;           // of this attachment
  pid_t pid = 0;            // as the daemon sees it; 0: not visible
  std::string artifact_id;  // empty: the mapped memory is not served any more
  std::vector<std::string> segments;
  UniqueFd process;

  bool ended() const;
};

void NoteAttachment(KeeperClient& keeper, const Attachment& holder);
void DropAttachment(KeeperClient& keeper, const Attachment& holder);
// Stores a holder that maps a replica which is not served any more.
void NoteUnserved(KeeperClient& keeper, Attachment& holder);
std::vector<std::string> NamesOf(const Attachment& holder);
// Moves the holders that have not ended out of the keeper's descriptors.
std::vector<Attachment> TakeAttachments(std::vector<KeptDescriptor>& kept);

}  // namespace tensorcast::daemon
