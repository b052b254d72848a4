#include "global_store/scheduler/link_rates.h"

#include <gtest/gtest.h>

namespace tensorcast::global_store::link_rates_test {
namespace {

LaneEnd Linked(uint64_t label, uint64_t measured = 0, std::string host = "") {
  return {.host_id = std::move(host), .link_mbit = label, .measured_mbit = measured};
}

uint64_t Cost(const LaneEnd& receiver, const LaneEnd& source, bool filling) {
  return CostOfFasterLink(receiver, {.end = &source, .filling = filling});
}

TEST(LinkRates, Label_CountsBeforeMeasuredRate) {
  EXPECT_EQ(RateOf(Linked(10'000, 900)), 10'000u);
  EXPECT_EQ(RateOf(Linked(0, 900)), 900u);
  EXPECT_EQ(RateOf(Linked(0)), 0u);
}

TEST(LinkRates, SlowLink_HasLessThanHalfOfReceiversRate) {
  EXPECT_TRUE(HasSlowLink(Linked(1'000), Linked(499)));
  EXPECT_FALSE(HasSlowLink(Linked(1'000), Linked(500)));
  EXPECT_TRUE(HasSlowLink(Linked(0, 1'000), Linked(0, 499))) << "as measured";
  EXPECT_FALSE(HasSlowLink(Linked(1'000), Linked(0))) << "not known";
  EXPECT_FALSE(HasSlowLink(Linked(0), Linked(499)));
  EXPECT_FALSE(HasSlowLink(Linked(1'000, 0, "h"), Linked(499, 0, "h"))) << "within a host";
}

TEST(LinkRates, MuchFasterSource_IsLeftToOthersAndWholeOneFirst) {
  EXPECT_EQ(Cost(Linked(400), Linked(601), /*filling=*/true), 1u);
  EXPECT_EQ(Cost(Linked(400), Linked(601), /*filling=*/false), 2u);
  EXPECT_EQ(Cost(Linked(400), Linked(600), /*filling=*/false), 0u);
  EXPECT_EQ(Cost(Linked(400), Linked(100), /*filling=*/false), 0u);
  EXPECT_EQ(Cost(Linked(0), Linked(601), /*filling=*/false), 0u) << "not known";
  EXPECT_EQ(Cost(Linked(400, 0, "h"), Linked(601, 0, "h"), /*filling=*/false), 0u) << "within a host";
}

TEST(LinkRates, SlowReceiver_TakesPartOfSlot) {
  EXPECT_EQ(SlotPartsOf(Linked(1'000), Linked(1'000)), kSlotParts);
  EXPECT_EQ(SlotPartsOf(Linked(4'000), Linked(1'000)), kSlotParts);
  EXPECT_EQ(SlotPartsOf(Linked(400), Linked(1'000)), kSlotParts * 2 / 5);
  EXPECT_EQ(SlotPartsOf(Linked(1), Linked(1'000)), kSlotParts / 4);
  EXPECT_EQ(SlotPartsOf(Linked(0), Linked(1'000)), kSlotParts) << "not known";
}

}  // namespace
}  // namespace tensorcast::global_store::link_rates_test
