#include "core/handles/availability_mirror.h"

#include <pthread.h>

#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "core/handles/codec.h"
#include "core/replica/announcer.h"

namespace tensorcast {
namespace {

constexpr uint32_t kWordBits = 64;
constexpr uint64_t kMaxChunks = uint64_t{1} << 26;  // their bits fit a frame; no image has more

absl::Status NotAllowed(std::string_view what) {
  return absl::InternalError(absl::StrCat("follow the chunks of a replica: the daemon ", what, kOneRelease));
}

}  // namespace

absl::StatusOr<std::unique_ptr<AvailabilityMirror>> AvailabilityMirror::Follow(ClientChannel* channel,
                                                                               const ReplicaHandles& handles,
                                                                               uint64_t chunk_bytes,
                                                                               SteadyTime deadline) {
  if (handles.image_bytes == 0 || chunk_bytes == 0 || handles.image_bytes / chunk_bytes >= kMaxChunks) {
    return absl::InvalidArgumentError(
        absl::StrCat("follow the chunks of replica ", handles.replica_id, ": an image of ",
                     handles.image_bytes, " bytes in chunks of ", chunk_bytes, " bytes does not have 1 to ",
                     kMaxChunks, " chunks", kOneRelease));
  }
  std::unique_ptr<AvailabilityMirror> mirror(new AvailabilityMirror(channel, handles, chunk_bytes));
  TC_ASSIGN_OR_RETURN(const IncomingFrame first, channel->Exchange(FollowFrame{}, {}, deadline));
  TC_RETURN_IF_ERROR(mirror->TakeFirst(first.frame));
  // All is told in one answer where the replica is ready, and no thread is needed.
  if (mirror->availability_->ended()) return mirror;
  // From here on the thread alone reads the connection.
  try {
    mirror->thread_ = std::thread([mirror = mirror.get()] { mirror->Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("follow the chunks of replica ", handles.replica_id,
                                                     ": no thread can be started (", error.what(),
                                                     "); raise the limit of threads (`ulimit -u`)"));
  }
  pthread_setname_np(mirror->thread_.native_handle(), "tc-follow");
  return mirror;
}

AvailabilityMirror::AvailabilityMirror(ClientChannel* channel, const ReplicaHandles& handles,
                                       uint64_t chunk_bytes)
    : channel_(channel),
      availability_(std::make_shared<Availability>(handles.image_bytes, chunk_bytes)),
      readable_(ReadableChunks(handles, handles.image_bytes, chunk_bytes)) {}

AvailabilityMirror::~AvailabilityMirror() {
  if (!thread_.joinable()) return;
  // Ends the wait in Receive.
  channel_->Shutdown();
  thread_.join();
}

// The first answer is a HAVE of the whole bitmap. For a replica that was ready it is HAVE_END alone, and then
// all chunks are there.
absl::Status AvailabilityMirror::TakeFirst(const Frame& frame) {
  const size_t words = (availability_->chunks() + kWordBits - 1) / kWordBits;
  if (const auto* have = std::get_if<HaveFrame>(&frame)) {
    if (have->first_chunk != 0 || have->words.size() != words) {
      return NotAllowed(absl::StrCat("sent a first bitmap of ", have->words.size(), " words from chunk ",
                                     have->first_chunk, " on instead of ", words, " words from chunk 0 on"));
    }
  } else if (const auto* end = std::get_if<HaveEndFrame>(&frame)) {
    TC_RETURN_IF_ERROR(end->status);
    if (!readable_.empty()) return NotAllowed("announced all chunks, but gave no memory for some of them");
    availability_->AddWords(0, std::vector<uint64_t>(words, ~uint64_t{0}));
  }
  return Take(frame);
}

absl::Status AvailabilityMirror::Take(const Frame& frame) {
  if (const auto* have = std::get_if<HaveFrame>(&frame)) return Take(*have);
  const auto* end = std::get_if<HaveEndFrame>(&frame);
  if (end == nullptr) {
    return NotAllowed(absl::StrCat("sent ", FrameName(frame), " instead of HAVE or HAVE_END"));
  }
  TC_RETURN_IF_ERROR(end->status);
  if (!availability_->complete()) {
    return NotAllowed(absl::StrCat("sent HAVE_END after ", availability_->count(), " of ",
                                   availability_->chunks(), " chunks"));
  }
  availability_->End(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status AvailabilityMirror::Take(const HaveFrame& have) {
  if (!FitsImage(have.first_chunk, have.words, availability_->chunks())) {
    return NotAllowed(absl::StrCat("sent a bitmap of ", have.words.size(), " words from chunk ",
                                   have.first_chunk, " on, which does not fit the replica's ",
                                   availability_->chunks(), " chunks"));
  }
  // To read a chunk without memory behind it would be a SIGSEGV here, so a daemon's claim is not believed.
  for (size_t i = 0; !readable_.empty() && i < have.words.size(); ++i) {
    if ((have.words[i] & ~readable_[have.first_chunk / kWordBits + i]) != 0) {
      return NotAllowed(absl::StrCat("announced one of the ", kWordBits, " chunks from chunk ",
                                     have.first_chunk + i * kWordBits,
                                     " on, but gave no memory for that chunk"));
    }
  }
  availability_->AddWords(have.first_chunk, have.words);
  return absl::OkStatus();
}

void AvailabilityMirror::Run() {
  while (!availability_->ended()) {
    // Without a deadline, since a replica may fill for as long as its sources need. The destructor ends the
    // wait.
    absl::StatusOr<IncomingFrame> frame = channel_->Receive(SteadyTime::InfiniteFuture());
    const absl::Status taken = frame.ok() ? Take(frame->frame) : frame.status();
    // A daemon that goes after it announced every chunk took nothing back.
    if (!taken.ok()) availability_->End(availability_->complete() ? absl::OkStatus() : taken);
  }
}

}  // namespace tensorcast
