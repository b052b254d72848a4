// The two lanes of UCX, as transport/lanes lists them.
#pragma once

#include "transport/lane.h"

namespace tensorcast::transport {

Lane UcxMessagesLane();  // "ucx"
Lane UcxRmaLane();       // "ucx-rma"

}  // namespace tensorcast::transport
