#include "tests/stand_ins/cuda/happens_before.h"

#include <gmock/gmock.h>

namespace tensorcast::stand_ins {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Access kWrite{.address = 1000, .bytes = 100, .write = true};
constexpr Access kRead{.address = 1099, .bytes = 1};

TEST(HappensBefore, OperationsOfOneStream_AreOrdered) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  EXPECT_THAT(order.Enqueue(1, {kRead}), IsEmpty());
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
}

TEST(HappensBefore, WriteAndReadOnTwoStreams_IsConflict) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  EXPECT_THAT(order.Enqueue(2, {kRead}), HasSubstr("operation 1 of stream 2 reads 1 bytes"));
}

TEST(HappensBefore, UnorderedWriteAfterRead_IsConflict) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kRead}), IsEmpty());
  EXPECT_THAT(order.Enqueue(2, {kRead}), IsEmpty()) << "two may read";
  EXPECT_THAT(order.Enqueue(3, {kWrite}), HasSubstr("nothing says which comes first"));
}

TEST(HappensBefore, WritesToOtherBytes_DoNotConflict) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  EXPECT_THAT(order.Enqueue(2, {{.address = 1100, .bytes = 5, .write = true}}), IsEmpty());
  EXPECT_THAT(order.Enqueue(2, {{.address = 990, .bytes = 10, .write = true}}), IsEmpty());
}

TEST(HappensBefore, Event_OrdersOnlyOperationsBeforeIt) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  const HappensBefore::Clock event = order.Record(1);
  order.Wait(2, event);
  EXPECT_THAT(order.Enqueue(2, {kRead}), IsEmpty());
  EXPECT_THAT(order.Enqueue(1, {kWrite}), HasSubstr("stream 1 writes"));
}

TEST(HappensBefore, EventsThroughThirdStream_OrderOperations) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  order.Wait(2, order.Record(1));
  EXPECT_THAT(order.Enqueue(2, {{.address = 5, .bytes = 5}}), IsEmpty());
  order.Wait(3, order.Record(2));
  EXPECT_THAT(order.Enqueue(3, {kRead}), IsEmpty());
}

TEST(HappensBefore, HostWait_OrdersAllLaterOperations) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  order.HostWaited(order.Record(1));
  EXPECT_THAT(order.Enqueue(2, {kWrite}), IsEmpty());
}

TEST(HappensBefore, ReleaseBeforeOperationsWereAwaited_IsConflict) {
  HappensBefore order;
  EXPECT_THAT(order.Enqueue(1, {kWrite}), IsEmpty());
  EXPECT_THAT(order.Release(1050, 1), HasSubstr("no call has waited"));
  EXPECT_THAT(order.Release(1100, 1), IsEmpty());
  order.HostWaited(order.Record(1));
  EXPECT_THAT(order.Release(1050, 1), IsEmpty());
}

}  // namespace
}  // namespace tensorcast::stand_ins
