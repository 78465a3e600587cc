/* slow.h - flags of a daemon with which a token takes some milliseconds (the float oracle does it), so that a
 * test can act while a text is being made: as it is served, the demo model's longest text is over in a tenth
 * of a second. */
#pragma once

#define SLOW "--arithmetic", "exact", "--executor", "eager"
