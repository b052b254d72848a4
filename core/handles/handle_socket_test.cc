// Both ends of the handle socket in one process: what a client that keeps to the protocol sees.
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/testing/eventually.h"
#include "base/testing/no_threads.h"
#include "core/handles/codec.h"
#include "core/handles/handle_client.h"
#include "core/handles/handle_server.h"
#include "core/handles/test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tensorcast::handle_socket_test {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPoolBytes = 8 * kGranuleBytes;

class HandleSocket : public ::testing::Test {
 protected:
  std::shared_ptr<void> Hold() {
    ++held_;
    return std::shared_ptr<void>(nullptr, [this](void*) { --held_; });
  }
  absl::StatusOr<std::unique_ptr<ClaimedReplica>> Claim(std::string_view ticket) {
    return ClaimedReplica::Claim(folder_.socket(), ticket, Soon());
  }
  std::string HostTicket(const std::vector<Extent>& extents = {{0, kGranuleBytes}},
                         uint64_t image_bytes = 4096) {
    return server_->IssueTicket(HostClaim(pool_.get(), kPoolBytes, extents, image_bytes, Hold()));
  }

  TestFolder folder_;
  UniqueFd pool_ = MakePool(kPoolBytes, PoolSeals());
  std::atomic<int> held_ = 0;
  std::unique_ptr<HandleServer> server_ = StartServer(folder_.socket());
};

TEST_F(HandleSocket, ScatteredReplica_MapsAsOneReadOnlyImage) {
  const uint64_t image_bytes = 3 * kGranuleBytes - 100;
  auto claimed = Claim(
      HostTicket({{5 * kGranuleBytes, kGranuleBytes}, {2 * kGranuleBytes, 2 * kGranuleBytes}}, image_bytes));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_EQ((*claimed)->handles().replica_id, "replica-1");
  EXPECT_EQ(std::get<HostHandles>((*claimed)->handles().memory).pool_id, "pool-1");

  const auto image = (*claimed)->MapImage();
  ASSERT_TRUE(image.ok()) << image.status();
  ASSERT_EQ(image->size(), image_bytes);
  for (const auto& [at, granule] : {std::pair<uint64_t, int>{0, 5},
                                    {kGranuleBytes - 1, 5},
                                    {kGranuleBytes, 2},
                                    {2 * kGranuleBytes, 3},
                                    {image_bytes - 1, 3}}) {
    EXPECT_EQ(static_cast<int>((*image)[at]), granule) << "byte " << at;
  }
  EXPECT_EQ((*claimed)->MapImage()->data(), image->data()) << "mapping again gives the same mapping";
  EXPECT_EQ(mprotect(const_cast<std::byte*>(image->data()), 4096, PROT_READ | PROT_WRITE), -1);
}

TEST_F(HandleSocket, Fence_ReportsDamageToHoldersAndRefusesTickets) {
  const absl::Status damaged = absl::DataLossError("its memory is bad");
  const std::string unclaimed = HostTicket();
  auto claimed = Claim(HostTicket());
  auto following = Claim(HostTicket());
  ASSERT_TRUE(claimed.ok() && following.ok());
  ASSERT_TRUE((*following)->Follow(4096, Soon()).ok());
  const auto image = (*claimed)->MapImage();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(server_->Fence("another", damaged), 0);
  EXPECT_TRUE((*claimed)->CheckIntact().ok());
  EXPECT_EQ(server_->Fence("replica-1", damaged), 2);
  for (const auto& holder : {claimed->get(), following->get()}) {
    const absl::Status told = holder->CheckIntact();
    EXPECT_EQ(told.code(), absl::StatusCode::kDataLoss) << told;
    EXPECT_THAT(std::string(told.message()), HasSubstr("its memory is bad"));
    EXPECT_EQ(holder->CheckIntact(), told) << "and from then on";
    EXPECT_FALSE(holder->lost());
  }
  EXPECT_EQ(static_cast<int>((*image)[0]), 0) << "it is mapped yet";
  EXPECT_EQ(Claim(unclaimed).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(server_->leases(), 2);
  claimed->reset();
  following->reset();
  EXPECT_TRUE(testing::Eventually([&] { return held_ == 0; }));
}

TEST_F(HandleSocket, EmptyImage_MapsToNothing) {
  auto claimed = Claim(HostTicket({}, 0));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE((*claimed)->MapImage()->empty());
}

TEST_F(HandleSocket, Claim_RefusesExtentsWithoutMemory) {
  const uint64_t far = ~uint64_t{0} / kGranuleBytes * kGranuleBytes;
  const std::vector<SegmentHandle> one = {{0, kPoolBytes}};
  const std::tuple<std::vector<SegmentHandle>, std::vector<SegmentExtent>, const char*> cases[] = {
      {one, {{0, 0, 8 * kGranuleBytes, kGranuleBytes}}, "past its segment of the pool"},
      {one, {{0, 0, 7 * kGranuleBytes, 2 * kGranuleBytes}}, "past its segment of the pool"},
      {one, {{0, 0, far, 2 * kGranuleBytes}}, "past its segment of the pool"},
      {one, {{0, 0, 0, far}}, "past its segment of the pool"},
      {one, {{0, 0, 4096, 2 * kGranuleBytes}}, "whole granules"},
      {one, {{0, 0, 0, 4096}}, "whole granules"},
      {one, {{4096, 0, 0, kGranuleBytes}}, "whole granules"},
      {one, {{0, 0, 0, 0}}, "whole granules"},
      {one, {{0, 1, 0, kGranuleBytes}}, "did not name"},
      {{}, {{0, 0, 0, kGranuleBytes}}, "did not name"},
      {one, {{0, 0, 0, 3 * kGranuleBytes}}, "past the image"},
      {one, {{2 * kGranuleBytes, 0, 0, kGranuleBytes}}, "past the image"},
      {one, {{far, 0, 0, kGranuleBytes}}, "past the image"},
      {one, {{0, 0, 0, kGranuleBytes}, {0, 0, 0, kGranuleBytes}}, "overlap"},
      {one, {{kGranuleBytes, 0, 0, kGranuleBytes}, {0, 0, 0, kGranuleBytes}}, "overlap"},
      {{{0, kPoolBytes}, {0, kPoolBytes}}, {}, "twice"},
      {{{1, kPoolBytes}, {0, kPoolBytes}}, {}, "twice"},
      {{{3, kPoolBytes + 1}}, {}, "segment 3: map a segment of a daemon's pool: the segment has"},
  };
  const int before = OpenDescriptors();
  for (const auto& [segments, extents, reason] : cases) {
    tensorcast::Claim claim;
    claim.handles = {"replica-1", "tc2:test", kGranuleBytes + 1, HostHandles{"pool-1", segments, extents}};
    claim.fds.assign(segments.size(), pool_.get());
    const absl::Status status = Claim(server_->IssueTicket(std::move(claim))).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << reason;
    EXPECT_THAT(status.message(), HasSubstr(reason));
  }
  tensorcast::Claim endless = HostClaim(pool_.get(), kPoolBytes, {}, ~uint64_t{0} - 5);
  EXPECT_EQ(Claim(server_->IssueTicket(std::move(endless))).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HandleSocket, HoleInImage_IsMappedWithoutReadAccess) {
  tensorcast::Claim claim = HostClaim(pool_.get(), kPoolBytes, {}, 5 * kGranuleBytes - 7);
  std::get<HostHandles>(claim.handles.memory).extents = {
      {kGranuleBytes, 0, 6 * kGranuleBytes, kGranuleBytes},
      {4 * kGranuleBytes, 0, kGranuleBytes, kGranuleBytes}};
  auto claimed = Claim(server_->IssueTicket(std::move(claim)));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  const auto& host = std::get<HostHandles>((*claimed)->handles().memory);
  EXPECT_TRUE(host.Covers(kGranuleBytes, kGranuleBytes) && host.Covers(4 * kGranuleBytes, 1));
  EXPECT_FALSE(host.Covers(0, 1) || host.Covers(kGranuleBytes, kGranuleBytes + 1) ||
               host.Covers(3 * kGranuleBytes, 2 * kGranuleBytes));

  const auto image = (*claimed)->MapImage();
  ASSERT_TRUE(image.ok()) << image.status();
  ASSERT_EQ(image->size(), 5 * kGranuleBytes - 7);
  EXPECT_EQ(static_cast<int>((*image)[kGranuleBytes]), 6);
  EXPECT_EQ(static_cast<int>((*image)[5 * kGranuleBytes - 8]), 1);
  // A write of unreadable memory fails, where touching it would be fatal.
  const UniqueFd memfd(memfd_create("copy", MFD_CLOEXEC));
  for (const uint64_t hole : {uint64_t{0}, 2 * kGranuleBytes, 4 * kGranuleBytes - 1}) {
    EXPECT_EQ(write(memfd.get(), image->data() + hole, 1), -1) << hole;
    EXPECT_EQ(errno, EFAULT);
  }
}

TEST_F(HandleSocket, ReplicaInManySegments_ComesWithExactlyTheirDescriptors) {
  // More than two messages carry.
  constexpr uint32_t kSegments = 2 * kMaxFrameDescriptors + 3;
  std::vector<UniqueFd> segments;
  HostHandles host{.pool_id = "pool-1", .segments = {}, .extents = {}};
  for (uint32_t i = 0; i < kSegments; ++i) {
    segments.emplace_back(memfd_create("segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(segments.back().get(), kGranuleBytes), 0);
    ASSERT_EQ(pwrite(segments.back().get(), &i, sizeof(i), 0), static_cast<ssize_t>(sizeof(i)));
    ASSERT_EQ(fcntl(segments.back().get(), F_ADD_SEALS, PoolSeals()), 0);
    host.segments.push_back({2 * i, kGranuleBytes});
    host.extents.push_back({i * kGranuleBytes, i, 0, kGranuleBytes});
  }
  tensorcast::Claim claim;
  claim.handles = {"replica-1", "tc2:test", kSegments * kGranuleBytes, host};
  for (const UniqueFd& segment : segments) claim.fds.push_back(segment.get());
  const int before = OpenDescriptors();
  {
    auto claimed = Claim(server_->IssueTicket(std::move(claim)));
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    ASSERT_EQ((*claimed)->fds().size(), kSegments);
    const auto image = (*claimed)->MapImage();
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE((*claimed)->fds().empty()) << "what is mapped needs no descriptor";
    for (uint32_t i = 0; i < kSegments; ++i) {
      uint32_t found = 0;
      std::memcpy(&found, image->data() + i * kGranuleBytes, sizeof(found));
      ASSERT_EQ(found, i);
    }
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(HandleSocket, Claim_PassesOnlySegmentsOfItsReplica) {
  auto pool = HostPool::Create(
      {.bytes = 6 * kGranuleBytes, .segment_bytes = 2 * kGranuleBytes, .prefault_threads = 0});
  ASSERT_TRUE(pool.ok()) << pool.status();
  const HostAllocation first = *(*pool)->Allocate(2 * kGranuleBytes);
  const HostAllocation replica = *(*pool)->Allocate(3 * kGranuleBytes);
  for (const HostSpan& span : replica.Spans(0, replica.bytes())) {
    std::fill(span.begin(), span.end(), std::byte{7});
  }
  tensorcast::Claim claim;
  claim.handles = {"replica-1", "tc2:test", replica.bytes(), {}};
  SetHostMemory(claim, **pool, "pool-1", replica);
  auto claimed = Claim(server_->IssueTicket(std::move(claim)));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  const auto& host = std::get<HostHandles>((*claimed)->handles().memory);
  EXPECT_EQ(host.segments, (std::vector<SegmentHandle>{{1, 2 * kGranuleBytes}, {2, 2 * kGranuleBytes}}));
  EXPECT_EQ((*claimed)->fds().size(), 2u);
  const auto image = (*claimed)->MapImage();
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_TRUE(std::ranges::all_of(*image, [](std::byte byte) { return byte == std::byte{7}; }));
}

TEST_F(HandleSocket, ClaimWithHalfAMillionExtents_ExceedsBufferAndSucceeds) {
  const std::vector<Extent> extents(500'000, Extent{kGranuleBytes, kGranuleBytes});
  tensorcast::Claim claim = HostClaim(pool_.get(), kPoolBytes, extents, 500'000 * kGranuleBytes);
  const std::vector<SegmentExtent> sent = std::get<HostHandles>(claim.handles.memory).extents;
  auto claimed = Claim(server_->IssueTicket(std::move(claim)));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_EQ(std::get<HostHandles>((*claimed)->handles().memory).extents, sent);
}

TEST_F(HandleSocket, Connection_HoldsTheLeaseUntilItEnds) {
  const std::string ticket = HostTicket();
  EXPECT_EQ(server_->tickets(), 1);
  auto claimed = Claim(ticket);
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_EQ(server_->tickets(), 0);
  EXPECT_EQ(server_->leases(), 1);
  EXPECT_EQ(server_->connections(), 1);
  EXPECT_EQ(held_, 1);
  claimed->reset();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
}

TEST_F(HandleSocket, HandleCounts_GroupLeasesByHolderAndMemory) {
  tensorcast::Claim claim = HostClaim(pool_.get(), kPoolBytes, {{0, kGranuleBytes}}, 100);
  claim.holder = Holder::kDaemon;
  const std::string of_daemon = server_->IssueTicket(std::move(claim));
  const std::string of_client = server_->IssueTicket(DeviceClaim());
  EXPECT_EQ(server_->counts().tickets, (std::array{1, 1, 0}));
  {
    auto daemon = Claim(of_daemon);
    auto client = Claim(of_client);
    ASSERT_TRUE(daemon.ok() && client.ok());
    EXPECT_TRUE(testing::Eventually([&] { return server_->counts().daemon_connections == 1; }));
    const HandleCounts counts = server_->counts();
    EXPECT_EQ(counts.client_connections, 1);
    EXPECT_EQ(counts.daemon_leases, (std::array{1, 0, 0}));
    EXPECT_EQ(counts.client_leases, (std::array{0, 1, 0}));
    EXPECT_EQ(counts.tickets, (std::array{0, 0, 0}));
    EXPECT_EQ(server_->leases(), 2);
    EXPECT_TRUE((*client)->AcknowledgeClosed().ok());
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0 && server_->leases() == 0; }));
  EXPECT_EQ(server_->counts().daemon_connections, 0);
}

TEST_F(HandleSocket, Ticket_IsGoodForOneClaim) {
  const std::string ticket = HostTicket();
  auto first = Claim(ticket);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Claim(ticket).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Claim("").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Claim("0123456789abcdef0123456789abcdef").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(server_->leases(), 1);
}

TEST_F(HandleSocket, ExpiredTicket_ReleasesItsReplica) {
  server_.reset();
  HandleServer::Options options;
  options.path = folder_.socket();
  options.ticket_ttl = absl::Milliseconds(5);
  server_ = *HandleServer::Start(options);
  const std::string ticket = HostTicket();
  EXPECT_TRUE(testing::Eventually([&] { return held_ == 0; }));
  EXPECT_EQ(server_->tickets(), 0);
  EXPECT_EQ(Claim(ticket).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(server_->leases(), 0);
}

TEST_F(HandleSocket, LostServer_IsNoticedAndMappingStaysReadable) {
  auto claimed = Claim(HostTicket({{3 * kGranuleBytes, kGranuleBytes}}, 4096));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  const auto image = (*claimed)->MapImage();
  EXPECT_FALSE((*claimed)->lost());
  server_.reset();
  EXPECT_EQ(held_, 0);
  EXPECT_TRUE((*claimed)->lost());
  pool_ = UniqueFd();
  EXPECT_EQ(static_cast<int>((*image)[0]), 3);
  EXPECT_EQ(Claim("x").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(HandleSocket, RestartedServersLease_IsTakenOverForTheSameMemory) {
  auto claimed = Claim(HostTicket());
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  server_.reset();
  server_ = StartServer(folder_.socket());
  auto elsewhere = Claim(HostTicket({{kGranuleBytes, kGranuleBytes}}, 4096));
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  EXPECT_EQ((*claimed)->TakeOver(*std::move(elsewhere)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE((*claimed)->lost());
  auto again = Claim(HostTicket());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*claimed)->TakeOver(*std::move(again)), absl::OkStatus());
  EXPECT_FALSE((*claimed)->lost());
  EXPECT_TRUE(testing::Eventually([&] { return held_ == 1; }));
  claimed->reset();
  EXPECT_TRUE(testing::Eventually([&] { return held_ == 0; }));
}

TEST_F(HandleSocket, FileReplica_ComesWithItsDescriptor) {
  const std::string path = folder_.path() + "/file";
  std::ofstream(path) << "packed";
  UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  tensorcast::Claim claim;
  claim.handles = {"replica-3", "tc2:test", 6, FileHandles{4096}};
  claim.fds = {file.get()};
  auto claimed = Claim(server_->IssueTicket(std::move(claim)));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  char bytes[6];
  EXPECT_EQ(pread((*claimed)->fds().front().get(), bytes, sizeof(bytes), 0), 6);
  EXPECT_EQ(std::string_view(bytes, 6), "packed");
  EXPECT_NE(fcntl((*claimed)->fds().front().get(), F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_EQ((*claimed)->MapImage().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*claimed)->AnnounceOpening().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*claimed)->AcknowledgeClosed().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(HandleSocket, AcknowledgeClosed_ReleasesDeviceMemory) {
  auto claimed = Claim(server_->IssueTicket(DeviceClaim(Hold())));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE((*claimed)->fds().empty());
  EXPECT_EQ(std::get<DeviceHandles>((*claimed)->handles().memory).ipc.opaque, "handle");
  EXPECT_EQ((*claimed)->MapImage().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(server_->leases(), 1);
  EXPECT_TRUE((*claimed)->AcknowledgeClosed().ok());
  EXPECT_EQ(server_->leases(), 0) << "released by the time the acknowledgement returns";
  EXPECT_EQ(held_, 0);
  EXPECT_TRUE((*claimed)->AcknowledgeClosed().ok()) << "idempotent";
  EXPECT_FALSE((*claimed)->lost());
}

TEST_F(HandleSocket, UnopenedDeviceMemory_IsReleasedWithItsConnection) {
  auto claimed = Claim(server_->IssueTicket(DeviceClaim(Hold())));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  claimed->reset();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);

  // Its client went without reading what it was sent, which the kernel calls a reset.
  UniqueFd gone = RawConnect(folder_.socket());
  SendFrame(gone.get(), HelloFrame{});
  SendFrame(gone.get(), ClaimFrame{server_->IssueTicket(DeviceClaim(Hold()))});
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 1; }));
  gone = UniqueFd();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);
}

TEST_F(HandleSocket, DeviceMemory_StaysHeldWhenOnlyTheConnectionEnds) {
  auto claimed = Claim(server_->IssueTicket(DeviceClaim(Hold())));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE((*claimed)->AnnounceOpening().ok());
  EXPECT_TRUE((*claimed)->AnnounceOpening().ok()) << "idempotent";
  claimed->reset();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(server_->leases(), 1);
  EXPECT_EQ(held_, 1);
  server_.reset();
  EXPECT_EQ(held_, 0) << "stopping the server releases everything";
}

TEST_F(HandleSocket, LeaseThatIsTakenOver_ReleasesOpenDeviceMemory) {
  auto claimed = Claim(server_->IssueTicket(DeviceClaim(Hold())));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  EXPECT_TRUE((*claimed)->AnnounceOpening().ok());
  tensorcast::Claim other = DeviceClaim();
  std::get<DeviceHandles>(other.handles.memory).ipc.opaque = "other";
  auto elsewhere = Claim(server_->IssueTicket(std::move(other)));
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  EXPECT_EQ((*claimed)->TakeOver(*std::move(elsewhere)).code(), absl::StatusCode::kFailedPrecondition);
  auto again = Claim(server_->IssueTicket(DeviceClaim(Hold())));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(held_, 2);
  EXPECT_EQ((*claimed)->TakeOver(*std::move(again)), absl::OkStatus());
  EXPECT_EQ(held_, 1) << "the earlier lease ends though the memory is open";
  claimed->reset();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(held_, 1) << "of the new lease the daemon knows that it has the memory open";
}

TEST_F(HandleSocket, OfferedMemfd_OutlivesItsClient) {
  const UniqueFd memfd = MakePool(2 * kGranuleBytes, OfferSeals());
  auto offered = OfferedMemory::OfferMemfd(folder_.socket(), memfd.get(), kGranuleBytes + 5, Soon());
  ASSERT_TRUE(offered.ok()) << offered.status();
  auto offer = server_->TakeOffer((*offered)->token());
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_EQ(offer->bytes, kGranuleBytes + 5);
  EXPECT_EQ(server_->TakeOffer((*offered)->token()).status().code(), absl::StatusCode::kNotFound)
      << "only once";
  offered->reset();
  char byte = 0;
  EXPECT_EQ(pread(offer->memfd.get(), &byte, 1, kGranuleBytes), 1);
  EXPECT_EQ(byte, 1);
}

TEST_F(HandleSocket, OfferedDeviceMemory_CarriesItsIpcHandle) {
  auto offered = OfferedMemory::OfferDevice(folder_.socket(), {"FAKE-3", "abc", 4096}, Soon());
  ASSERT_TRUE(offered.ok()) << offered.status();
  auto offer = server_->TakeOffer((*offered)->token());
  ASSERT_TRUE(offer.ok()) << offer.status();
  EXPECT_FALSE(offer->memfd);
  EXPECT_EQ(offer->ipc.device_uuid, "FAKE-3");
  EXPECT_EQ(offer->ipc.opaque, "abc");
  EXPECT_EQ(offer->bytes, 4096u);
}

TEST_F(HandleSocket, OfferedFiles_ArriveInTheirOrder) {
  const int before = OpenDescriptors();
  for (const size_t count : {size_t{1}, size_t{2}, kMaxFrameDescriptors, 2 * kMaxFrameDescriptors + 1}) {
    std::vector<UniqueFd> files;
    std::vector<int> fds;
    for (size_t i = 0; i < count; ++i) {
      files.emplace_back(memfd_create("file", MFD_CLOEXEC));
      ASSERT_EQ(ftruncate(files.back().get(), static_cast<off_t>(i)), 0);
      fds.push_back(files.back().get());
    }
    auto offered = OfferedMemory::OfferFiles(folder_.socket(), fds, Soon());
    ASSERT_TRUE(offered.ok()) << offered.status();
    files.clear();  // the daemon has its own
    auto offer = server_->TakeOffer((*offered)->token());
    ASSERT_TRUE(offer.ok()) << offer.status();
    ASSERT_EQ(offer->files.size(), count);
    for (size_t i = 0; i < count; ++i) {
      struct stat info;
      ASSERT_EQ(fstat(offer->files.fds()[i].get(), &info), 0);
      EXPECT_EQ(info.st_size, static_cast<off_t>(i));
    }
  }
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(HandleSocket, UntakenOfferedFiles_AreClosedWithTheirConnection) {
  const int before = OpenDescriptors();
  const UniqueFd file = MakePool(kGranuleBytes, 0);
  const std::vector<int> fds(3, file.get());
  auto offered = OfferedMemory::OfferFiles(folder_.socket(), fds, Soon());
  ASSERT_TRUE(offered.ok()) << offered.status();
  offered->reset();
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before + 1; }));
}

TEST_F(HandleSocket, OfferOfTooManyOrNoFiles_IsRefused) {
  const std::vector<int> fds(kMaxOfferedFiles + 1, 0);
  EXPECT_TRUE(absl::IsInvalidArgument(OfferedMemory::OfferFiles(folder_.socket(), fds, Soon()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(OfferedMemory::OfferFiles(folder_.socket(), {}, Soon()).status()));
}

TEST_F(HandleSocket, Offer_EndsWithItsConnection) {
  const int before = OpenDescriptors();
  const UniqueFd memfd = MakePool(kGranuleBytes, OfferSeals());
  auto offered = OfferedMemory::OfferMemfd(folder_.socket(), memfd.get(), 1, Soon());
  ASSERT_TRUE(offered.ok()) << offered.status();
  const std::string token = (*offered)->token();
  offered->reset();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_EQ(server_->TakeOffer(token).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before + 1; }));
}

TEST_F(HandleSocket, Offer_RefusesMemoryThatIsNotSealed) {
  const auto refusal = [&](int fd, uint64_t bytes) {
    return OfferedMemory::OfferMemfd(folder_.socket(), fd, bytes, Soon()).status();
  };
  for (const int seals : {0, F_SEAL_WRITE | F_SEAL_SHRINK, F_SEAL_WRITE | F_SEAL_GROW, PoolSeals()}) {
    const absl::Status status = refusal(MakePool(kGranuleBytes, seals).get(), 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << seals;
    EXPECT_THAT(status.message(), HasSubstr("F_SEAL_WRITE"));
  }
  EXPECT_THAT(refusal(MakePool(kGranuleBytes, OfferSeals()).get(), kGranuleBytes + 1).message(),
              HasSubstr("announced"));
  const std::string path = folder_.path() + "/file";
  std::ofstream(path) << "x";
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(refusal(file.get(), 1).code(), absl::StatusCode::kInvalidArgument);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const UniqueFd reader(pipe_ends[0]), writer(pipe_ends[1]);
  EXPECT_EQ(refusal(reader.get(), 0).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HandleSocket, TwoHundredClients_AreServedConcurrently) {
  constexpr int kClients = 200;
  std::vector<std::string> tickets;
  for (int i = 0; i < kClients; ++i) tickets.push_back(HostTicket());
  std::vector<absl::StatusOr<std::unique_ptr<ClaimedReplica>>> claimed(kClients);
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i) threads.emplace_back([&, i] { claimed[i] = Claim(tickets[i]); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& one : claimed) EXPECT_TRUE(one.ok()) << one.status();
  EXPECT_EQ(server_->leases(), kClients);
  EXPECT_EQ(held_, kClients);
  claimed.clear();
  EXPECT_TRUE(testing::Eventually([&] { return server_->leases() == 0; }));
  EXPECT_EQ(held_, 0);
}

TEST_F(HandleSocket, ManyClaimsAndOffers_LeaveNoDescriptorOpen) {
  const UniqueFd memfd = MakePool(kGranuleBytes, OfferSeals());
  const int before = OpenDescriptors();
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Claim(HostTicket()).ok());
    ASSERT_TRUE(OfferedMemory::OfferMemfd(folder_.socket(), memfd.get(), 1, Soon()).ok());
    ASSERT_FALSE(Claim("nonsense").ok());
  }
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(testing::Eventually([&] { return OpenDescriptors() == before; }));
}

TEST_F(HandleSocket, ReleasedHold_MayCallTheServer) {
  std::atomic<bool> called = false;
  std::shared_ptr<void> hold(nullptr, [&](void*) {
    server_->IssueTicket({});
    (void)server_->TakeOffer("none");
    called = true;
  });
  auto claimed = Claim(
      server_->IssueTicket(HostClaim(pool_.get(), kPoolBytes, {{0, kGranuleBytes}}, 1, std::move(hold))));
  ASSERT_TRUE(claimed.ok()) << claimed.status();
  claimed->reset();
  EXPECT_TRUE(testing::Eventually([&] { return called.load(); }));
}

TEST_F(HandleSocket, ClientPastConnectionLimit_IsRefusedAndKeepsItsTicket) {
  server_.reset();
  HandleServer::Options options;
  options.path = folder_.socket();
  options.max_connections = 1;
  server_ = *HandleServer::Start(options);
  auto first = Claim(HostTicket());
  ASSERT_TRUE(first.ok()) << first.status();
  const std::string ticket = HostTicket();
  EXPECT_EQ(Claim(ticket).status().code(), absl::StatusCode::kResourceExhausted);
  first->reset();
  EXPECT_TRUE(testing::Eventually([&] { return server_->connections() == 0; }));
  EXPECT_TRUE(Claim(ticket).ok()) << "the refusal did not use the ticket up";
}

TEST_F(HandleSocket, SocketOfDeadDaemon_IsReplaced) {
  HandleServer::Options options;
  options.path = folder_.socket();
  EXPECT_EQ(HandleServer::Start(options).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Claim(HostTicket()).ok()) << "the living one still serves";

  // A name without its listener: what a killed daemon leaves.
  const std::string dead = folder_.path() + "/dead.sock";
  std::filesystem::create_hard_link(folder_.socket(), dead);
  server_.reset();
  EXPECT_FALSE(std::filesystem::exists(folder_.socket())) << "removed at the end";
  options.path = dead;
  auto replaced = HandleServer::Start(options);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  EXPECT_TRUE(RawConnect(dead));
}

TEST_F(HandleSocket, FileThatIsNotASocket_IsLeftAlone) {
  HandleServer::Options options;
  options.path = folder_.path() + "/precious";
  std::ofstream(options.path) << "data";
  EXPECT_EQ(HandleServer::Start(options).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::filesystem::file_size(options.path), 4u);
}

TEST_F(HandleSocket, UnusableSocketPath_IsRefused) {
  HandleServer::Options options;
  options.path = folder_.path() + "/" + std::string(100, 'x');
  EXPECT_EQ(HandleServer::Start(options).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ClaimedReplica::Claim(options.path, "x", Soon()).status().code(),
            absl::StatusCode::kInvalidArgument);
  options.path = "/nonexistent/handles.sock";
  EXPECT_EQ(HandleServer::Start(options).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HandleSocket, SocketMode_FollowsAllowedGroups) {
  const auto mode = [](const std::string& path) {
    struct stat info;
    EXPECT_EQ(stat(path.c_str(), &info), 0);
    return info.st_mode & 0777;
  };
  EXPECT_EQ(mode(folder_.socket()), 0600u);
  HandleServer::Options options;
  options.path = folder_.path() + "/group.sock";
  options.allowed_groups = {getegid()};
  auto server = HandleServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(mode(options.path), 0660u);
}

TEST_F(HandleSocket, ServerWithoutThread_IsRefused) {
  const bool tried = testing::WithoutThreads([this] {
    const absl::Status started = HandleServer::Start({.path = folder_.File("other.sock")}).status();
    EXPECT_TRUE(absl::IsResourceExhausted(started)) << started;
  });
  if (!tried) GTEST_SKIP() << "the kernel does not let this test refuse threads";
}

}  // namespace
}  // namespace tensorcast::handle_socket_test
