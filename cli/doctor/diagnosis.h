// Everything that `tensorcast doctor` checks, and the checks of this host. Pure functions.
#pragma once

#include "cli/doctor/facts.h"
#include "cli/doctor/finding.h"

namespace tensorcast::doctor {

// Checks that the daemon answers; if not, lists the folders in which one was searched.
void CheckDaemon(const Facts& facts, FindingList& out);
// Checks the space for packed artifacts.
void CheckDisk(const Facts& facts, FindingList& out);

FindingList Diagnose(const Facts& facts);

}  // namespace tensorcast::doctor
