#include "daemon/sources/overtaken_peers.h"

#include "gtest/gtest.h"

namespace tensorcast::daemon::overtaken_peers_test {
namespace {

constexpr SteadyTime kStart;
const OvertakenPeers::Peer kPeer = {"a", 1};

TEST(OvertakenPeers, PeerOvertakenAgain_RestsTwiceAsLong) {
  OvertakenPeers peers;
  EXPECT_FALSE(peers.Rests(kPeer, kStart));
  SteadyTime now = kStart;
  absl::Duration rest = OvertakenPeers::kFirstRest;
  for (int i = 0; i < 10; ++i) {
    peers.NoteOvertaken(kPeer, now);
    peers.NoteOvertaken(kPeer, now + rest / 2);  // another transfer, of the same fault
    EXPECT_TRUE(peers.Rests(kPeer, now + rest - absl::Milliseconds(1)));
    EXPECT_FALSE(peers.Rests(kPeer, now + rest));
    now += rest;
    rest = std::min(rest * 2, OvertakenPeers::kLongestRest);
  }
}

TEST(OvertakenPeers, PeerThatServesOrRestarts_HasNoRest) {
  OvertakenPeers peers;
  peers.NoteOvertaken(kPeer, kStart);
  EXPECT_FALSE(peers.Rests({"a", 2}, kStart));
  peers.NoteServed(kPeer);
  EXPECT_FALSE(peers.Rests(kPeer, kStart));
  peers.NoteOvertaken(kPeer, kStart);
  EXPECT_FALSE(peers.Rests(kPeer, kStart + OvertakenPeers::kFirstRest));
}

}  // namespace
}  // namespace tensorcast::daemon::overtaken_peers_test
