#include "daemon/session/sessions.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/steady_time.h"
#include "base/testing/eventually.h"
#include "base/testing/temp_folder.h"
#include "core/device/fake_device.h"
#include "core/engine/engine.h"
#include "core/handles/handle_client.h"
#include "core/handles/ring_filler.h"
#include "core/testing/scripted_source.h"
#include "core/testing/test_artifact.h"
#include "gtest/gtest.h"

namespace tensorcast::daemon {
namespace {

class SessionsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto pool = HostPool::Create({.bytes = 16 << 20, .use_huge_pages = false, .prefault_threads = 0});
    ASSERT_TRUE(pool.ok()) << pool.status();
    pool_ = *std::move(pool);
    auto devices = CreateFakeRuntime({.device_count = 1, .device_bytes = 8 << 20});
    ASSERT_TRUE(devices.ok()) << devices.status();
    devices_ = *std::move(devices);
    auto engine = StoreEngine::Create({.host_pool = pool_.get(),
                                       .devices = devices_.get(),
                                       .staging_buffers = 1,
                                       .staging_buffer_bytes = 2 << 20});
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    auto handles =
        HandleServer::Start({.path = folder_.path() + "/handles.sock", .ticket_ttl = absl::Minutes(1)});
    ASSERT_TRUE(handles.ok()) << handles.status();
    handles_ = *std::move(handles);
    sessions_ = std::make_unique<Sessions>(handles_.get(), pool_.get(), devices_.get());
    used_before_ = pool_->stats().used_bytes;  // by the staging buffers
  }

  std::unique_ptr<ReplicaLease> MakeReplica(Location location) {
    auto provider = std::make_shared<testing::ScriptedProvider>(
        std::vector{testing::MakeControl(artifact_.image, testing::SourceScript{})});
    auto pending = engine_->Ingest(
        context_, {.manifest = artifact_.manifest, .location = location, .sources = provider});
    EXPECT_TRUE(pending.ok()) << pending.status();
    auto lease = (*pending)->Wait(context_);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return *std::move(lease);
  }

  uint32_t Leases() const {
    uint32_t leases = 0;
    for (const ReplicaInfo& replica : engine_->ListReplicas()) leases += replica.leases;
    return leases;
  }

  bool LeasesEnd() const {
    return testing::Eventually([this] { return Leases() == 0; });
  }

  // A sealed memfd with these bytes, as a client hands it over.
  UniqueFd SealedMemory(const std::vector<std::byte>& bytes) {
    UniqueFd memory(memfd_create("offer", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(write(memory.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    EXPECT_EQ(fcntl(memory.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
    return memory;
  }

  // A client with a ring for the artifact's image, which it does not fill yet.
  std::unique_ptr<RingFiller> OpenRing(std::span<const HandedMemory> handed = {}) {
    auto filler = RingFiller::Open(handles_->path(), artifact_.image.size(), context_.deadline, {}, handed);
    EXPECT_TRUE(filler.ok()) << filler.status();
    return *std::move(filler);
  }
  RingFiller::Fill FillFromImage() const {
    return [this](int, uint64_t offset, HostSpan to) {
      std::memcpy(to.data(), artifact_.image.data() + offset, to.size());
      return absl::OkStatus();
    };
  }
  absl::StatusOr<std::unique_ptr<ChunkSource>> SourceOf(std::string_view token, uint64_t image_bytes) {
    TC_ASSIGN_OR_RETURN(Offer offer, sessions_->TakeOffer(token));
    return sessions_->SourceOf(std::move(offer), image_bytes,
                               [&](std::string_view id) { return engine_->LeaseReplica(id); });
  }
  absl::StatusOr<std::unique_ptr<ReplicaLease>> IngestFrom(const RingFiller& filler, Location location = {},
                                                           std::optional<ImageLayout> layout = {}) {
    auto source = SourceOf(filler.token(), artifact_.image.size());
    if (!source.ok()) return source.status();
    auto pending = engine_->Ingest(context_, {.location = location,
                                              .sources = MakeSingleSourceProvider(*std::move(source)),
                                              .new_layout = layout.value_or(artifact_.layout)});
    if (!pending.ok()) return pending.status();
    return (*pending)->Wait(context_);
  }
  // Nothing of a put that failed is left.
  bool AllIsGone() const {
    return testing::Eventually([this] {
      return engine_->ListReplicas().empty() && pool_->stats().used_bytes == used_before_ &&
             handles_->put_ring_bytes() == 0;
    });
  }

  const tensorcast::testing::TempFolder folder_;
  const testing::TestArtifact artifact_ = testing::MakeChunkedArtifact(1, 5, kMinChunkBytes);
  const RequestContext context_ = RequestContext::Background(absl::Seconds(20));
  uint64_t used_before_ = 0;
  std::unique_ptr<HostPool> pool_;
  std::unique_ptr<DeviceRuntime> devices_;
  std::unique_ptr<StoreEngine> engine_;
  std::unique_ptr<HandleServer> handles_;
  std::unique_ptr<Sessions> sessions_;
};

TEST_F(SessionsTest, Ticket_MapsImageAndConnectionHoldsLease) {
  auto ticket = sessions_->IssueTicket(MakeReplica({LocationKind::kCpu}));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  EXPECT_EQ(Leases(), 1);
  auto claim = ClaimedReplica::Claim(handles_->path(), *ticket, context_.deadline);
  ASSERT_TRUE(claim.ok()) << claim.status();
  EXPECT_EQ((*claim)->handles().artifact_id, artifact_.manifest->id());
  EXPECT_EQ(std::get<HostHandles>((*claim)->handles().memory).pool_id, pool_->id());
  auto image = (*claim)->MapImage();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_TRUE(std::equal(image->begin(), image->end(), artifact_.image.begin(), artifact_.image.end()));
  EXPECT_EQ(ClaimedReplica::Claim(handles_->path(), *ticket, context_.deadline).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Leases(), 1);
  claim->reset();
  EXPECT_TRUE(LeasesEnd());
}

TEST_F(SessionsTest, DeviceReplica_IsClaimedAsIpcHandle) {
  auto ticket = sessions_->IssueTicket(MakeReplica({LocationKind::kGpu, 0}));
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  auto claim = ClaimedReplica::Claim(handles_->path(), *ticket, context_.deadline);
  ASSERT_TRUE(claim.ok()) << claim.status();
  const auto& device = std::get<DeviceHandles>((*claim)->handles().memory);
  EXPECT_EQ(device.ipc.device_uuid, devices_->devices()[0].uuid);
  EXPECT_GE(device.ipc.bytes, artifact_.image.size());
  EXPECT_TRUE((*claim)->AcknowledgeClosed().ok());
  claim->reset();
  EXPECT_TRUE(LeasesEnd());
}

TEST_F(SessionsTest, OfferedMemory_IsSourceOfIngest) {
  const UniqueFd memory = SealedMemory(artifact_.image);
  auto offer =
      OfferedMemory::OfferMemfd(handles_->path(), memory.get(), artifact_.image.size(), context_.deadline);
  ASSERT_TRUE(offer.ok()) << offer.status();
  auto source = SourceOf((*offer)->token(), artifact_.image.size());
  ASSERT_TRUE(source.ok()) << source.status();
  offer->reset();  // the mapping outlives the client
  auto pending = engine_->Ingest(
      context_, {.sources = MakeSingleSourceProvider(*std::move(source)), .new_layout = artifact_.layout});
  ASSERT_TRUE(pending.ok()) << pending.status();
  auto lease = (*pending)->Wait(context_);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(testing::Gather((*lease)->memory().host->Spans(0, artifact_.image.size())), artifact_.image);
}

TEST_F(SessionsTest, OfferSmallerThanTensors_IsRefused) {
  const UniqueFd memory = SealedMemory(artifact_.image);
  auto offer =
      OfferedMemory::OfferMemfd(handles_->path(), memory.get(), artifact_.image.size(), context_.deadline);
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(SourceOf((*offer)->token(), artifact_.image.size() + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sessions_->TakeOffer("no such offer").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(SessionsTest, StreamedTensors_BecomeAReplica) {
  for (const Location location : {Location{LocationKind::kCpu}, Location{LocationKind::kGpu, 0}}) {
    auto filler = OpenRing();
    ASSERT_TRUE(filler->Start(2, FillFromImage(), nullptr).ok());
    auto lease = IngestFrom(*filler, location);
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (uint32_t chunk = 0; chunk < artifact_.layout.chunk_count(); ++chunk) {
      const ByteRange range = artifact_.layout.chunk(chunk);
      EXPECT_EQ((*lease)->manifest()->digests()[chunk].xxh3,
                ComputeDigest(std::span(artifact_.image).subspan(range.offset, range.bytes)));
    }
    EXPECT_TRUE(testing::Eventually([&] { return handles_->put_ring_bytes() == 0; })) << "the put is over";
  }
}

TEST_F(SessionsTest, BytesThatChangeWhileCopied_AreStoredAsDigested) {
  auto filler = OpenRing();
  // It says at once that all is there, and goes on writing all over it.
  ASSERT_TRUE(filler->Start(2, [](int, uint64_t, HostSpan) { return absl::OkStatus(); }, nullptr).ok());
  std::atomic<bool> over = false;
  std::thread vandal([&] {
    const HostSpan slots = filler->slots();
    for (uint64_t i = 0; !over.load(); ++i) {
      const uint64_t at = i * 4099 % (slots.size() - sizeof(i));
      std::memcpy(slots.data() + at, &i, sizeof(i));
    }
  });
  auto lease = IngestFrom(*filler);
  over = true;
  vandal.join();
  ASSERT_TRUE(lease.ok()) << lease.status();
  const Manifest& manifest = *(*lease)->manifest();
  for (uint32_t chunk = 0; chunk < manifest.layout().chunk_count(); ++chunk) {
    const ByteRange range = manifest.layout().chunk(chunk);
    DigestBuilder digest(/*with_blake3=*/true);
    for (const HostSpan& span : (*lease)->memory().host->Spans(range.offset, range.bytes)) {
      digest.Update(span);
    }
    EXPECT_EQ(digest.FinishChunk(), manifest.digests()[chunk]) << "chunk " << chunk;
  }
}

TEST_F(SessionsTest, ClientThatDiesWhileItStreams_LeavesNothing) {
  auto filler = OpenRing();
  std::atomic<int> filled = 0;
  // It fills the first piece, and dies in the second.
  ASSERT_TRUE(filler
                  ->Start(
                      1,
                      [&](int, uint64_t, HostSpan) {
                        return ++filled > 1 ? absl::AbortedError("killed") : absl::OkStatus();
                      },
                      nullptr)
                  .ok());
  const std::string token = filler->token();  // before the thread below ends the filler
  std::thread death([&] {
    EXPECT_TRUE(testing::Eventually([&] { return filled > 1; }));
    filler.reset();
  });
  auto source = SourceOf(token, artifact_.image.size());
  ASSERT_TRUE(source.ok()) << source.status();
  auto pending = engine_->Ingest(
      context_, {.sources = MakeSingleSourceProvider(*std::move(source)), .new_layout = artifact_.layout});
  ASSERT_TRUE(pending.ok()) << pending.status();
  const absl::Status ended = (*pending)->Wait(context_).status();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  death.join();
  pending->reset();
  EXPECT_TRUE(AllIsGone());
}

TEST_F(SessionsTest, HandedTensors_AreStoredWithoutRingRequests) {
  // The tensors lie one behind the other in the memory, which has no padding.
  std::vector<std::byte> packed;
  std::vector<HandedMemory> handed(1);
  for (const Tensor& tensor : artifact_.layout.tensors) {
    handed[0].parts.push_back({tensor.offset, tensor.nbytes, packed.size()});
    const auto bytes = std::span(artifact_.image).subspan(tensor.offset, tensor.nbytes);
    packed.insert(packed.end(), bytes.begin(), bytes.end());
  }
  handed[0].memfd = SealedMemory(packed);
  handed[0].bytes = packed.size();
  auto filler = OpenRing(handed);
  // No client fills the ring.
  auto lease = IngestFrom(*filler);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_EQ(testing::Gather((*lease)->memory().host->Spans(0, artifact_.image.size())), artifact_.image);
}

TEST_F(SessionsTest, TensorsOfPresentReplica_AreCopiedFromIt) {
  auto source = MakeReplica({LocationKind::kCpu});
  std::vector<HandedMemory> handed(2);
  handed[0].pool_id = pool_->id();
  handed[0].replica_id = source->replica_id();
  handed[0].parts = {{0, 2 * kMinChunkBytes + 5, 0}};
  handed[1].pool_id = "of another daemon";
  handed[1].replica_id = source->replica_id();
  handed[1].parts = {{3 * kMinChunkBytes, 7, 0}};
  auto filler = OpenRing(handed);
  std::atomic<bool> asked_for_handed = false;
  ASSERT_TRUE(filler
                  ->Start(
                      1,
                      [&](int thread, uint64_t offset, HostSpan to) {
                        if (offset < 2 * kMinChunkBytes + 5) asked_for_handed = true;
                        return FillFromImage()(thread, offset, to);
                      },
                      nullptr)
                  .ok());
  ImageLayout renamed = artifact_.layout;
  renamed.tensors[0].name += " again";
  ASSERT_TRUE(AssignOffsets(renamed).ok());
  auto lease = IngestFrom(*filler, {}, renamed);
  ASSERT_TRUE(lease.ok()) << lease.status();
  EXPECT_FALSE(asked_for_handed);
  EXPECT_EQ(testing::Gather((*lease)->memory().host->Spans(0, artifact_.image.size())), artifact_.image);
  EXPECT_TRUE(testing::Eventually([&] { return Leases() == 2; })) << "what was copied is still held";
}

TEST_F(SessionsTest, HandedPartsThatOverlapOrPassTheImage_AreRefused) {
  const uint64_t image_bytes = artifact_.image.size();
  const UniqueFd memory = SealedMemory(artifact_.image);
  const std::vector<HandedPart> wrong[] = {
      {{0, 300, 0}, {299, 1, 0}}, {{image_bytes, 1, 0}}, {{image_bytes - 1, 2, 0}}, {{~uint64_t{0}, 2, 0}}};
  for (const std::vector<HandedPart>& parts : wrong) {
    std::vector<HandedMemory> handed(1);
    handed[0].memfd = UniqueFd(fcntl(memory.get(), F_DUPFD_CLOEXEC, 0));
    handed[0].bytes = image_bytes;
    handed[0].parts = parts;
    auto filler = OpenRing(handed);
    const absl::Status refused = SourceOf(filler->token(), image_bytes).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  }
  EXPECT_TRUE(AllIsGone());
}

TEST_F(SessionsTest, PutRingForSmallerImage_IsRefusedAndReleased) {
  auto filler = OpenRing();
  EXPECT_EQ(SourceOf(filler->token(), artifact_.image.size() + 1).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(AllIsGone());
}

TEST(SingleSourceProvider, SingleSourceProvider_FailsWithErrorOfItsSource) {
  auto control = testing::MakeControl(std::vector<std::byte>(10));
  const RequestContext context = RequestContext::Background(absl::Seconds(20));
  auto provider = MakeSingleSourceProvider(control->MakeSource());
  ASSERT_TRUE(testing::NextOf(*provider, context).ok());
  SourceFailure failure{.source = {.name = "client"}, .status = absl::InternalError("gone")};
  EXPECT_EQ(testing::NextOf(*provider, context, &failure).status(), absl::InternalError("client: gone"));
  failure.status = absl::InternalError("chunk 3 from client: gone");
  EXPECT_EQ(testing::NextOf(*provider, context, &failure).status(), failure.status) << "names it already";
}

}  // namespace
}  // namespace tensorcast::daemon
