// Processes that are attached to replicas in host memory, as they are noted with the keeper: each by its
// pidfd, which names a process and never the next one with its number, and with what it maps.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/posix/unique_fd.h"
#include "daemon/keeper/keeper.h"

namespace tensorcast::daemon {

struct Attachment {
  std::string id;           // of this attachment
  pid_t pid = 0;            // as the daemon sees it, 0 where it does not
  std::string artifact_id;  // empty: what it maps is not served any more
  std::vector<std::string> segments;
  UniqueFd process;

  bool ended() const;
};

void NoteAttachment(KeeperClient& keeper, const Attachment& holder);
void DropAttachment(KeeperClient& keeper, const Attachment& holder);
// Notes a holder that maps a replica that is not served any more.
void NoteUnserved(KeeperClient& keeper, Attachment& holder);
std::vector<std::string> NamesOf(const Attachment& holder);
// Takes the holders that have not ended out of what a keeper has.
std::vector<Attachment> TakeAttachments(std::vector<KeptDescriptor>& kept);

}  // namespace tensorcast::daemon
