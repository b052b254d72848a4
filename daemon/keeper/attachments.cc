#include "daemon/keeper/attachments.h"

#include <poll.h>

#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/log/log.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "daemon/keeper/kept_record.h"

namespace tensorcast::daemon {
namespace {

// The digit is the version of what the name and the file hold: a daemon ignores those of other versions.
constexpr std::string_view kHolderPrefix = "holder1/";
constexpr std::string_view kMappedPrefix = "mapped1/";

std::string HolderName(const Attachment& holder) {
  return absl::StrCat(kHolderPrefix, holder.pid, "/", holder.artifact_id, "/", holder.id);
}

std::string MappedName(const Attachment& holder) { return absl::StrCat(kMappedPrefix, holder.id); }

}  // namespace

bool Attachment::ended() const {
  // A pidfd becomes readable when its process ends.
  pollfd poller{process.get(), POLLIN, 0};
  return poll(&poller, 1, 0) != 0;
}

void NoteAttachment(KeeperClient& keeper, const Attachment& holder) {
  // The segments are written first: a holder that is found without them would seem to map nothing.
  keeper.Put(MappedName(holder), WriteKept(absl::StrJoin(holder.segments, "\n")));
  keeper.Put(HolderName(holder), Duplicate(holder.process.get()));
}

void DropAttachment(KeeperClient& keeper, const Attachment& holder) {
  for (const std::string& name : NamesOf(holder)) keeper.Drop(name);
}

void NoteUnserved(KeeperClient& keeper, Attachment& holder) {
  // The artifact is a part of the name, so the holder gets a new name before the old one goes: at no time is
  // it without one.
  const std::string before = HolderName(holder);
  holder.artifact_id.clear();
  keeper.Put(HolderName(holder), Duplicate(holder.process.get()));
  if (HolderName(holder) != before) keeper.Drop(before);
}

std::vector<std::string> NamesOf(const Attachment& holder) {
  return {HolderName(holder), MappedName(holder)};
}

std::vector<Attachment> TakeAttachments(std::vector<KeptDescriptor>& kept) {
  absl::flat_hash_map<std::string, std::vector<std::string>> mapped;  // by the attachment's id
  std::vector<Attachment> holders;
  std::erase_if(kept, [&](KeptDescriptor& one) {
    std::string_view name = one.name;
    if (absl::ConsumePrefix(&name, kMappedPrefix)) {
      const absl::StatusOr<std::string> segments = ReadKept(one.fd.get());
      LOG_IF(WARNING, !segments.ok())
          << "read which kept memory a process of the previous daemon maps: " << segments.status();
      if (segments.ok()) mapped[name] = absl::StrSplit(*segments, '\n', absl::SkipEmpty());
      return true;
    }
    if (!absl::ConsumePrefix(&name, kHolderPrefix)) return false;
    const std::vector<std::string> parts = absl::StrSplit(name, '/');
    Attachment holder;
    // A name that cannot be read is of another version, and goes.
    if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &holder.pid)) return true;
    holder.artifact_id = parts[1];
    holder.id = parts[2];
    holder.process = std::move(one.fd);
    if (!holder.ended()) holders.push_back(std::move(holder));
    return true;
  });
  // Names come in any order, so the two files of a holder are brought together at the end.
  for (Attachment& holder : holders) holder.segments = std::move(mapped[holder.id]);
  return holders;
}

}  // namespace tensorcast::daemon
