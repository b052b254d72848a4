// Processes that are attached to replicas in host memory, as the keeper stores them. Each process has a pidfd
// and the names of the segments that it maps. Thread-safe functions.
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
  std::string artifact_id;  // empty: the daemon no longer serves the mapped memory
  std::vector<std::string> segments;
  UniqueFd process;

  bool ended() const;
};

void NoteAttachment(KeeperClient& keeper, const Attachment& holder);
void DropAttachment(KeeperClient& keeper, const Attachment& holder);
// Records that the daemon no longer serves the holder's replica; clears holder.artifact_id.
void NoteUnserved(KeeperClient& keeper, Attachment& holder);
std::vector<std::string> NamesOf(const Attachment& holder);
// Removes all attachments from `kept`, and returns those of processes that have not ended.
std::vector<Attachment> TakeAttachments(std::vector<KeptDescriptor>& kept);

}  // namespace tensorcast::daemon
