/* Products of a few long rows B (r, d) with a vector, at memory bandwidth and in more than float32 precision.

   A float32 sum over 100,000 terms has an error of 1e-5. Here sums are in float32 over short stretches, which fills the
   vector units, and in double across stretches. Several rows are processed together, so that what they share is loaded
   once. Compiled once per type of B; with -DBFLOAT16 its entries are the upper halves of float32 numbers. */

#include <stdint.h>
#include <string.h>

#define STRETCH 1024 /* columns per float32 sum along a row */
#define TILE 16384   /* columns whose sums over rows fit into a cache together */
#define GROUP 32     /* rows per float32 sum over rows; a multiple of 8 */

#ifdef BFLOAT16
typedef uint16_t entry;
static inline float wide(entry x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}
#else
typedef float entry;
static inline float wide(entry x) { return x; }
#endif

static inline long smaller(long a, long b) { return a < b ? a : b; }

/* Row i of B; the last row for i >= r, whose result is not used. */
static inline const entry *row(const entry *B, long stride, long r, long i) { return B + smaller(i, r - 1) * stride; }

/* c (r) = B v for v (d). The rows of B begin `stride` entries apart. */
void coefficients(const entry *B, long stride, long r, long d, const float *v, double *c, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long i = 0; i < r; i += 4) {
        const entry *b0 = row(B, stride, r, i), *b1 = row(B, stride, r, i + 1);
        const entry *b2 = row(B, stride, r, i + 2), *b3 = row(B, stride, r, i + 3);
        double sums[4] = {0};
        for (long start = 0; start < d; start += STRETCH) {
            long stop = smaller(start + STRETCH, d);
            float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
            for (long j = start; j < stop; j++) {
                s0 += wide(b0[j]) * v[j];
                s1 += wide(b1[j]) * v[j];
                s2 += wide(b2[j]) * v[j];
                s3 += wide(b3[j]) * v[j];
            }
            sums[0] += s0, sums[1] += s1, sums[2] += s2, sums[3] += s3;
        }
        memcpy(c + i, sums, sizeof(double) * smaller(4, r - i));
    }
}

/* part (width) += sum of w[k] b[k] over eight rows b[0] .. b[7]. */
static inline void add_rows(const entry **b, const float *w, float *part, long width) {
#pragma omp simd
    for (long j = 0; j < width; j++)
        part[j] += w[0] * wide(b[0][j]) + w[1] * wide(b[1][j]) + w[2] * wide(b[2][j]) + w[3] * wide(b[3][j])
                 + w[4] * wide(b[4][j]) + w[5] * wide(b[5][j]) + w[6] * wide(b[6][j]) + w[7] * wide(b[7][j]);
}

/* out (d) = Bᵀ c for c (r). */
void combination(const entry *B, long stride, long r, long d, const float *c, float *out, int threads) {
    long share = (d + threads - 1) / threads, tiles = threads * ((share + TILE - 1) / TILE);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (long tile = 0; tile < tiles; tile++) {
        long left = d * tile / tiles, width = d * (tile + 1) / tiles - left;
        double sums[TILE] = {0};
        for (long top = 0; top < r; top += GROUP) {
            float part[TILE] = {0};
            for (long i = top; i < smaller(top + GROUP, r); i += 8) {
                const entry *b[8];
                float w[8];
                for (long k = 0; k < 8; k++) {
                    b[k] = row(B, stride, r, i + k) + left;
                    w[k] = i + k < r ? c[i + k] : 0;
                }
                add_rows(b, w, part, width);
            }
            for (long j = 0; j < width; j++) sums[j] += part[j];
        }
        for (long j = 0; j < width; j++) out[left + j] = (float)sums[j];
    }
}
